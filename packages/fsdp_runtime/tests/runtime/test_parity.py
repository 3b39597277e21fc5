"""Sharded training is the mathematics of unsharded PyTorch."""

import copy
from dataclasses import astuple
from functools import cache

import pytest
import torch
from testing.models import TiedModel
from testing.ranks import Rank, run_ranks
from torch.distributed import PrefixStore
from torch.nn import functional

from sshsdp_fsdp_runtime import Sharding, Update, fully_shard, is_matrix
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD, AdamW
from sshsdp_zerosm import Topology, connect

STEPS = 4
TOLERANCE = 1e-10  # relative, FP64
CLIP = {1: None, 3: 0.05}  # largest gradient norm by number of microbatches
NESTED = [
    (world, Degrees(zero3, zero2, zero1))
    for world in (1, 2, 3, 4, 6)
    for zero1 in range(1, world + 1)
    for zero2 in range(1, zero1 + 1)
    for zero3 in range(1, zero2 + 1)
    if world % zero1 == zero1 % zero2 == zero2 % zero3 == 0
]


def batch(step: int, microbatch: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + 10 * microbatch + rank)
    return torch.randint(0, 13, (2, 6), generator=generator)


def loss_of(model: torch.nn.Module, ids: torch.Tensor, microbatches: int) -> torch.Tensor:
    scores = model(ids[:, :-1])
    return functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten()) / microbatches


def unsharded(model, world, microbatches, clip):
    """Plain PyTorch on every rank's data, averaged over ranks."""
    decayed = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    optimizers = [
        torch.optim.AdamW(decayed, lr=3e-2, weight_decay=0.1),
        torch.optim.SGD(others, lr=5e-2, momentum=0.9),
    ]
    norms = []
    for step in range(STEPS):
        for microbatch in range(microbatches):
            for rank in range(world):
                (loss_of(model, batch(step, microbatch, rank), microbatches) / world).backward()
        if clip:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict(), norms


def train(rank: Rank, topology, model, sharding, form, microbatches, clip, torch_clip):
    store = PrefixStore(f"{form}{microbatches}", rank.store)
    transport = connect(rank.rank, rank.world, store, timeout=30, topology=topology)
    sharded = fully_shard(
        copy.deepcopy(model),
        sharding=sharding,
        updates=[
            Update("**", AdamW(lr=3e-2, weight_decay=0.1), where=is_matrix),
            Update("**", SGD(lr=5e-2, momentum=0.9)),
        ],
        transport=transport,
        form=form,
        poison=form == "private",
    )
    optimizer = sharded.optimizer
    norms = []
    for step in range(STEPS):
        for microbatch in range(microbatches):
            loss_of(sharded, batch(step, microbatch, rank.rank), microbatches).backward()
        if clip:
            norm = (
                torch.nn.utils.clip_grad_norm_(sharded.parameters(), clip)
                if torch_clip
                else optimizer.clip_grad_norm_(clip)
            )
            norms.append(norm.item())
        optimizer.step()
        optimizer.zero_grad()
    state = {name: value.clone() for name, value in sharded.full_state_dict().items()}
    sharded.close()
    transport.close()
    return state, norms


def assert_close(state, expected):
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            state[name],
            value,
            rtol=TOLERANCE,
            atol=1e-12,
            msg=lambda text, name=name: f"{name}: {text}",
        )


@pytest.mark.parametrize(
    "degrees", NESTED, ids=lambda case: "world{}-{}{}{}".format(case[0], *astuple(case[1]))
)
def test_weights_equal_those_of_plain_pytorch(degrees):
    world, chain = degrees
    runs = [("private", 1), ("private", 3), ("shared", 3)]
    for results, (_, microbatches) in zip(
        on_all(Topology.single(world), [Sharding("**", chain)], runs), runs, strict=True
    ):
        check(results, world, microbatches)


def test_parameter_sets_with_degrees_of_their_own():
    sharding = [
        Sharding("layers.*.up.**", Degrees(1, 2, 4)),
        Sharding("layers.0.**", Degrees(4, 4, 4)),
        Sharding("layers.**", Degrees(2, 2, 4)),
        Sharding("gain", Degrees.for_ddp()),
        Sharding("**", Degrees.for_hsdp(2)),
    ]
    for form in ("private", "shared"):
        [results] = on_all(Topology.single(4), sharding, [(form, 3)])
        check(results, 4, 3)


def on_all(topology, sharding, runs):
    """Per run, what every rank has in the end; ranks are started once."""
    model = fresh()

    def main(rank):
        return [
            train(
                rank,
                topology,
                model,
                sharding,
                form,
                microbatches,
                CLIP[microbatches],
                form == "private",
            )
            for form, microbatches in runs
        ]

    return zip(*run_ranks(main, topology.world, timeout=120), strict=True)


def check(results, world, microbatches):
    expected, norms = reference(world, microbatches)
    for state, sharded_norms in results:
        assert_close(state, expected)
        assert sharded_norms == pytest.approx(norms, rel=1e-9)


def fresh():
    torch.manual_seed(0)
    return TiedModel().double()


@cache
def reference(world, microbatches):
    return unsharded(fresh(), world, microbatches, CLIP[microbatches])
