"""The paper's running example: one cut head, whose u and v are all that moves in the update."""

from functools import cache
from typing import ClassVar

import pytest
import torch
from integration.examples import running_example as example
from testing.ledger import Ledger
from testing.ranks import run_ranks

from sshsdp_fsdp_runtime.runtime import state
from sshsdp_shardchain import Level
from sshsdp_zerosm import connect

QUERY = "query.weight"
FULL = example.HEADS * example.SIZE * example.WIDTH * 4  # bytes of the whole main weight, in FP32


class Recording(state.TransportExchange):
    """Keeps the messages that the optimizer has compiled."""

    messages: ClassVar = []

    def compile(self, messages):
        self.messages += messages
        return super().compile(messages)


def observe(rank, dtype):
    """Run the example under observation; what comes back is picklable."""
    state.TransportExchange = Recording  # in this process only
    topology = example.TOPOLOGY
    with connect(rank.rank, rank.world, rank.store, timeout=60, topology=topology) as transport:
        journal = example.Journal(transport.counters)
        model = example.shard(transport, journal, dtype)
        with Ledger() as ledger:
            example.train(model, journal, rank.rank, dtype)
        momentum = {f.name: f.tensor.numel() for f in model.optimizer.fields()}
        weights = {n: v.numpy().copy() for n, v in model.full_state_dict().items()}
        result = {
            "layout": model.plan.atoms[0].layout,
            "arenas": {arena.name: arena.nbytes for arena in model.plan.storage.arenas},
            "stages": journal.stages,
            "messages": Recording.messages,
            "largest": max(entry.allocated_bytes for entry in ledger.entries),
            "momentum": momentum,
            "weights": {name: torch.from_numpy(value) for name, value in weights.items()},
        }
        model.close()
        return result


@cache
def observed(dtype=torch.bfloat16):
    return run_ranks(observe, example.TOPOLOGY.world, dtype)


def reference(dtype, *, fused=False):
    """Torch's Muon in one process, heads as parameters of their own unless `fused`."""
    wide = torch.promote_types(dtype, torch.float32)
    main = {n: p.detach() for n, p in example.fresh_model().to(wide).named_parameters()}
    sizes = {"key_value.weight": example.SIZE, QUERY: main[QUERY].shape[0] if fused else 8}
    parts = {
        name: [
            torch.nn.Parameter(part.clone()) for part in value.split(sizes.get(name, len(value)))
        ]
        for name, value in main.items()
    }
    muon = torch.optim.Muon([p for own in parts.values() for p in own], lr=0.02, weight_decay=0.1)
    for step in range(example.STEPS):
        gradients = {name: torch.zeros_like(value) for name, value in main.items()}
        for microbatch in range(example.MICROBATCHES):
            for rank in range(example.TOPOLOGY.world):
                model = example.fresh_model().to(dtype)
                model.load_state_dict({n: torch.cat(own) for n, own in parts.items()})
                x, context, target = example.batch(rank, step, microbatch, dtype)
                loss = torch.nn.functional.mse_loss(model(x, context), target)
                (loss / example.MICROBATCHES).backward()
                for name, parameter in model.named_parameters():
                    gradients[name] += parameter.grad.to(wide) / example.TOPOLOGY.world
        for name, own in parts.items():
            for part, grad in zip(own, gradients[name].split(len(own[0])), strict=True):
                part.grad = grad
        with pytest.MonkeyPatch.context() as patch:
            if dtype == torch.float64:
                # torch's iteration always is in BF16: here its one cast gives a copy in FP64.
                patch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
            muon.step()
    return {name: torch.cat(own).detach() for name, own in parts.items()}


def distance(ours, theirs, initial):
    """Of what training has changed."""
    return float((ours - theirs).norm() / (theirs - initial).norm())


def test_head_0_alone_is_cut_between_ranks_2_and_1():
    layout = observed()[0]["layout"]
    assert layout.chain.owners(Level.ZERO1) == (0, 2, 1, 3)
    placement = layout.placement(QUERY)
    assert (placement.offset, layout.numel, layout.padding) == (1664, 3584, 0)
    assert placement.offset + 128 == layout.numel // 2  # the middle of the buffer
    pieces = [layout.fragment(QUERY, Level.ZERO1, rank) for rank in range(4)]
    assert [(p.start, p.stop) for p in pieces if not p.empty] == [(128, 1024), (0, 128)]
    assert [p.rank for p in pieces if not p.empty] == [1, 2]
    held = [layout.fragment(QUERY, Level.ZERO2, rank) for rank in range(4)]
    assert [(p.start, p.stop) for p in held] == [(0, 128), (128, 1024)] * 2


def test_u_goes_from_rank_1_to_rank_2_and_v_back_and_nothing_else_moves():
    ranks = observed()
    moved = [[(m.source, m.target, m.nbytes) for m in rank["messages"]] for rank in ranks]
    # Half a head: 128 elements of u in BF16, of v in FP32.
    assert moved == [[], [(1, 2, 256), (2, 1, 512)], [(1, 2, 256), (2, 1, 512)], []]
    for stage, between in {
        example.LABELS["momentum"]: [0, 0, 0, 0],
        example.LABELS["orthogonalize"]: [0, 256, 512, 0],  # as the transport has counted
        example.LABELS["apply"]: [0, 0, 0, 0],
    }.items():
        assert [rank["stages"][stage]["between"] for rank in ranks] == between
        assert [rank["stages"][stage]["within"] for rank in ranks] == [0, 0, 0, 0]


def test_rank_2_works_on_the_cut_head_after_units_of_its_own():
    works = [rank["stages"][example.LABELS["orthogonalize"]]["works on"] for rank in observed()]
    assert works == [["1 of 32x28"], ["3 of 8x32"], ["2 of 8x48", "1 of 8x32"], ["1 of 28x32"]]


def test_no_rank_ever_has_a_full_main_weight_or_momentum():
    for rank, held in zip(observed(), (0, 896, 128, 0), strict=True):
        assert rank["momentum"][QUERY] == held
        assert rank["arenas"]["main_weights"] == 896 * 4  # a quarter of everything
        assert rank["arenas"]["main_grads"] == 896 * 4
        # u and v of its own elements, and room for the other half of head 0.
        assert rank["arenas"]["temporaries"] == (896 + 128) * (2 + 4)
        assert rank["largest"] < FULL  # of all that torch allocated while training


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.bfloat16, 2e-2)])
def test_it_equals_local_muon_per_head_and_is_far_from_muon_of_the_projection(dtype, bound):
    initial = example.fresh_model().state_dict()
    per_head, fused = reference(dtype), reference(dtype, fused=True)
    for rank in observed(dtype):
        for name, value in rank["weights"].items():
            assert distance(value, per_head[name], initial[name]) <= bound, name
        assert distance(rank["weights"][QUERY], fused[QUERY], initial[QUERY]) >= 0.3
