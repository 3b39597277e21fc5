"""Sharded training is the mathematics of unsharded PyTorch."""

import copy
from functools import cache

import pytest
import torch
from testing.models import TiedModel
from testing.ranks import Rank, run_ranks
from torch.nn import functional

from sshsdp_fsdp_runtime import Sharding, Update, fully_shard, is_matrix
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD, AdamW
from sshsdp_zerosm import Topology, connect

STEPS = 3
TOLERANCE = 1e-10  # relative, FP64
CLIP = {1: None, 2: 0.05, 3: 0.05}  # largest gradient norm by number of microbatches
RUNS = [("private", 1), ("private", 3), ("shared", 3)]  # form, microbatches
# Of 6 ranks: cut by 1, 2, 3 and 6 at each level; the other chains are in the slow grid.
SIX = [
    *((1, 1, 1), (1, 1, 6), (2, 6, 6), (1, 3, 3), (1, 1, 2)),
    *((6, 6, 6), (1, 6, 6), (3, 6, 6), (2, 2, 6), (1, 1, 3)),
]


def nested(world):
    """Every nested (zero3, zero2, zero1)."""
    return [
        (zero3, zero2, zero1)
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


def unsharded(model, world, microbatches, steps):
    """Plain PyTorch on every rank's data, averaged over ranks."""
    decayed = [p for p in model.parameters() if p.requires_grad and p.dim() >= 2]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() < 2]
    optimizers = [
        torch.optim.AdamW(decayed, lr=3e-2, weight_decay=0.1),
        torch.optim.SGD(others, lr=5e-2, momentum=0.9),
    ]
    clip, norms = CLIP[microbatches], []
    for step in range(steps):
        for microbatch in range(microbatches):
            for rank in range(world):
                (loss_of(model, batch(step, microbatch, rank), microbatches) / world).backward()
        if clip:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict(), norms


def train(rank: Rank, transport, model, sharding, form, microbatches, steps=STEPS):
    clip, torch_clip = CLIP[microbatches], form == "private"
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
    for step in range(steps):
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
    ("world", "chains"),
    [
        *((world, nested(world)) for world in (1, 2, 3, 4)),
        (6, SIX[:5]),
        (6, SIX[5:]),
        pytest.param(6, sorted({*nested(6)} - {*SIX}), marks=pytest.mark.full),
    ],
    ids=["1", "2", "3", "4", "6 first", "6 second", "6 rest"],
)
def test_weights_equal_those_of_plain_pytorch(world, chains):
    check_all(
        Topology.single(world),
        [
            ([Sharding("**", Degrees(*chain))], *run)
            for index, chain in enumerate(chains)
            for run in runs_of(world, index, chain)
        ],
    )


@pytest.mark.full
def test_so_they_do_with_one_microbatch_where_four_ranks_cut_alike():
    chains = [chain for chain in nested(4) if len({*chain}) < 3]
    check_all(Topology.single(4), [([Sharding("**", Degrees(*c))], "private", 1) for c in chains])


def runs_of(world, index, chain):
    """Forms and numbers of microbatches take turns where there are many ranks."""
    if world == 4:  # one microbatch only where each degree is another
        return RUNS if len({*chain}) == 3 else RUNS[1:]
    return RUNS if world < 4 else RUNS[index % 2 :: 2]


def test_parameter_sets_with_degrees_of_their_own():
    sharding = [
        Sharding("layers.*.up.**", Degrees(1, 2, 4)),
        Sharding("layers.0.**", Degrees(4, 4, 4)),
        Sharding("layers.**", Degrees(2, 2, 4)),
        Sharding("gain", Degrees.for_ddp()),
        Sharding("**", Degrees.for_hsdp(2)),
    ]
    check_all(Topology.single(4), [(sharding, "private", 3), (sharding, "shared", 3)])


def check_all(topology, runs):
    """Train once per (sharding, form, microbatches, steps), on ranks that are started once."""
    model = fresh()

    def main(rank):
        with connect(rank.rank, rank.world, rank.store, timeout=60, topology=topology) as transport:
            return [train(rank, transport, model, *run) for run in runs]

    for answers in run_ranks(main, topology.world, timeout=300):
        for run, (state, norms) in zip(runs, answers, strict=True):
            expected, expected_norms = reference(topology.world, *run[2:])
            try:
                assert_close(state, expected)
                assert norms == pytest.approx(expected_norms, rel=1e-9)
            except AssertionError as error:
                error.add_note(f"in the run {run}")
                raise


def fresh():
    torch.manual_seed(0)
    return TiedModel().double()


@cache
def reference(world, microbatches, steps=STEPS):
    return unsharded(fresh(), world, microbatches, steps)
