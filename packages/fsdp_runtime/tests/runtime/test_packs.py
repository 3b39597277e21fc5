"""Training with packs is the mathematics of plain PyTorch, under the model's own names."""

import copy
from dataclasses import astuple

import pytest
import torch
from testing.ranks import run_ranks
from torch import nn
from torch.distributed import PrefixStore
from torch.nn import functional

from sshsdp_fsdp_runtime import Pack, PlanError, Sharding, Update, fully_shard, is_matrix
from sshsdp_shardchain import Degrees
from sshsdp_updates import AdamW, Muon, heads
from sshsdp_zerosm import connect

from .packed_model import PACKS, VOCABULARY, fresh

STEPS, MICROBATCHES = 2, 2


def loss_of(model, step, microbatch, rank):
    generator = torch.Generator().manual_seed(100 * step + 10 * microbatch + rank)
    ids = torch.randint(0, VOCABULARY, (2, 6), generator=generator)
    return functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def unsharded(world, bias):
    model = fresh(bias)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for step in range(STEPS):
        for microbatch in range(MICROBATCHES):
            for rank in range(world):
                (loss_of(model, step, microbatch, rank) / world).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def train(rank, model, tag, **options):
    """A few steps on this rank; weights by name, and the calls of all packs together."""
    store = PrefixStore(tag, rank.store)
    with connect(rank.rank, rank.world, store, timeout=60) as transport:
        options.setdefault("updates", [Update("**", AdamW(lr=1e-2, weight_decay=0.1))])
        model = fully_shard(model, transport=transport, **options)
        for step in range(STEPS):
            for microbatch in range(MICROBATCHES):
                loss_of(model, step, microbatch, rank.rank).backward()
            model.optimizer.step()
            model.optimizer.zero_grad()
        state = {name: value.clone() for name, value in model.full_state_dict().items()}
        calls = [astuple(calls) for calls in model.pack_calls().values()]
        model.close()
    return state, [sum(column) for column in zip(*calls, strict=True)]


def assert_close(state, expected):
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            state[name], value, rtol=1e-10, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}"
        )


DEGREES = [(1, (1, 1, 1)), (2, (2, 2, 2)), (2, (1, 2, 2)), (4, (2, 2, 4)), (4, (1, 1, 2))]


@pytest.mark.parametrize(("world", "degrees"), DEGREES)
def test_weights_equal_those_of_plain_pytorch(world, degrees):
    cases = [
        ("private", True, None),
        ("shared", False, None),
        ("private", False, True),
        ("private", True, False),
    ]

    def main(rank):
        return [
            train(
                rank,
                fresh(bias, reentrant),
                f"{form}{bias}{reentrant}",
                packs=PACKS,
                form=form,
                poison=form == "private",
                sharding=[Sharding("**", Degrees(*degrees))],
            )
            for form, bias, reentrant in cases
        ]

    expected = {bias: unsharded(world, bias) for bias in (True, False)}
    for results in run_ranks(main, world, timeout=240):
        for (state, calls), (_, bias, reentrant) in zip(results, cases, strict=True):
            assert_close(state, expected[bias])
            passes = STEPS * MICROBATCHES * (1 if reentrant is None else 2)
            fused, sliced, _, _ = calls
            assert (fused, sliced) == (4 * passes, 0)  # two packs in two layers


def test_a_member_that_only_some_ranks_call_counts_as_zero_elsewhere():
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.ModuleDict({n: nn.Linear(3, 4) for n in "abc"})])

        def forward(self, x, names):
            return sum(self.layers[0][name](x).tanh().sum() for name in names)

    torch.manual_seed(0)
    model = Branch().double()
    names, x = ["ca", "a"], torch.randn(5, 3, dtype=torch.float64)

    def main(rank):
        with connect(rank.rank, rank.world, rank.store, timeout=60) as transport:
            ours = fully_shard(
                copy.deepcopy(model), packs=[Pack("layers.0", ["a", "b", "c"])], transport=transport
            )
            ours(x, names[rank.rank]).backward()
            ours.finalize_gradients()
            used = {n: ours._sharded.gradients.used(n) for n, _ in ours.named_parameters()}
            found = {n: (p.grad.fragment, p.grad.local) for n, p in ours.named_parameters()}
            found = {n: (f.start, f.stop, local.clone()) for n, (f, local) in found.items()}
            ours.close()
        return used, found

    (sum(model(x, own) for own in names) / 2).backward()
    for used, found in run_ranks(main, 2, timeout=120):
        for name, parameter in model.named_parameters():
            assert used[name] == (parameter.grad is not None)
            start, stop, local = found[name]
            if parameter.grad is not None:
                torch.testing.assert_close(local, parameter.grad.flatten()[start:stop])


def test_muon_per_head_on_packed_weights_equals_that_on_separate_ones():
    muon = Muon(lr=0.02, ns_dtype=torch.float64)
    updates = [
        Update("**.query.weight", muon, unit=heads(4)),
        Update("**.attention.**", muon, where=is_matrix),
        Update("**", AdamW(lr=1e-2)),
    ]
    sharding = [Sharding("**", Degrees(2, 2, 2))]

    def main(rank):
        return [
            train(rank, fresh(), f"{len(p)}", packs=p, updates=updates, sharding=sharding)[0]
            for p in (PACKS, [])
        ]

    for packed, apart in run_ranks(main, 2, timeout=120):
        assert_close(packed, apart)


def test_state_dicts_go_to_plain_pytorch_and_back():
    model = fresh()
    packed = fully_shard(fresh(), packs=PACKS)
    loss_of(packed, 0, 0, 0).backward()
    packed.optimizer.step()
    model.load_state_dict(packed.full_state_dict())
    assert torch.equal(loss_of(model, 1, 0, 0), loss_of(packed, 1, 0, 0))
    again = fully_shard(fresh(), packs=PACKS)
    again.load_state_dict(model.state_dict())
    assert torch.equal(loss_of(again, 1, 0, 0), loss_of(packed, 1, 0, 0))


def test_frozen_layers_are_packed_too():
    model = fresh()
    model.layers.requires_grad_(False)
    expected = copy.deepcopy(model)
    loss_of(expected, 0, 0, 0).backward()
    packed = fully_shard(model, packs=PACKS)
    loss_of(packed, 0, 0, 0).backward()
    torch.testing.assert_close(
        packed.embedding.weight.grad.local, expected.embedding.weight.grad.flatten()
    )
    assert {calls.fused_forward for calls in packed.pack_calls().values()} == {1}


def test_a_module_that_only_looks_like_a_linear_layer_is_refused():
    model = nn.Sequential(nn.ModuleDict({"a": nn.Linear(3, 4), "b": nn.Embedding(4, 3)}))
    model[0]["a"] = nn.Linear(3, 4, bias=False)
    with pytest.raises(PlanError) as caught:
        fully_shard(model, packs=[Pack("0", ["a", "b"])])
    assert str(caught.value) == (
        "pack of '0': expected nn.Linear members, got Embedding for '0.b'; leave it out of the pack"
    )
