"""A run with two update rules goes on after a restart, at any world size; other models are refused.

The checkpoint tests of the runtime cover AdamW over BF16 weights; here state differs by parameter.
"""

import pytest
import torch
import torch.distributed as dist
from packages.fsdp_runtime.tests.runtime.scenes import ids
from testing.models import TiedModel
from testing.ranks import run_ranks
from torch.nn import functional

from sshsdp_fsdp_runtime import Update, fully_shard
from sshsdp_fsdp_runtime.checkpoint import (
    CheckpointMismatchError,
    load_checkpoint,
    save_checkpoint,
)
from sshsdp_updates import SGD, AdamW
from sshsdp_zerosm import connect

STEPS = 4


def build(rank, seed, **sizes):
    torch.manual_seed(seed)
    if rank.world > 1:
        dist.init_process_group("gloo", store=rank.store, rank=rank.rank, world_size=rank.world)
    updates = [
        Update("layers.**.weight", SGD(lr=1e-1, momentum=0.9, nesterov=True)),
        Update("**", AdamW(lr=1e-2)),
    ]
    transport = connect(rank.rank, rank.world, rank.store, timeout=30)
    return fully_shard(TiedModel(**sizes), updates=updates, transport=transport)


def train(model, rank, steps):
    losses = []
    for step in steps:
        seed = 100 * step + rank.rank
        loss = functional.cross_entropy(model(ids(seed)).flatten(0, 1), ids(seed + 50).flatten())
        loss.backward()
        model.optimizer.step()
        model.optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def fragments(model):
    """Each saved tensor's piece on this rank, as plain values that travel between processes."""
    return {
        entry.key: (entry.start, entry.shape, entry.tensor.tolist())
        for entry in model.checkpoint_tensors()
    }


def save_and_go_on(rank, path):
    model = build(rank, 0)
    train(model, rank, range(STEPS))
    save_checkpoint(path, model, {"step": STEPS})
    saved = fragments(model), model.checkpoint_scalars()
    losses = train(model, rank, range(STEPS, 2 * STEPS))
    return saved, losses, fragments(model)


def load_and_go_on(rank, path):
    model = build(rank, 1)
    extra = load_checkpoint(path, model)
    loaded = fragments(model), model.checkpoint_scalars()
    losses = train(model, rank, range(extra["step"], 2 * STEPS))
    return loaded, losses, fragments(model)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("resume") / "saved"
    return path, run_ranks(save_and_go_on, 2, path)


def whole(pieces):
    """Flat values of every tensor, put together from the fragments of all ranks."""
    tensors = {}
    for key in pieces[0]:
        by_start = {start: values for start, _, values in (p[key] for p in pieces) if values}
        tensors[key] = [value for start in sorted(by_start) for value in by_start[start]]
    return tensors


def test_the_same_world_goes_on_bit_for_bit(saved):
    path, expected = saved
    assert run_ranks(load_and_go_on, 2, path) == expected


@pytest.mark.parametrize("world", [1, 3])
def test_another_world_has_the_saved_values_and_goes_on(saved, world):
    path, saving = saved
    results = run_ranks(load_and_go_on, world, path)
    before = whole([fragments for (fragments, _), *_ in saving])
    after = whole([fragments for (fragments, _), *_ in results])
    assert after == before
    assert any(key.endswith(".momentum_buffer") for key in after)
    assert any(key.endswith(".exp_avg_sq") for key in after)
    (_, scalars), *_ = saving[0]
    assert [scalars_ for (_, scalars_), *_ in results] == [scalars] * world
    # Rank 0 sees the same data in every world, so its next loss tells whether weights are in use.
    assert results[0][1][0] == pytest.approx(saving[0][1][0], rel=1e-5)
    assert all(len(losses) == STEPS for _, losses, _ in results)


def load_other(rank, path, sizes):
    model = build(rank, 1, **sizes)
    before = fragments(model)
    with pytest.raises(CheckpointMismatchError) as caught:
        load_checkpoint(path, model)
    assert fragments(model) == before
    return str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "difference"),
    [
        ({"hidden": 9}, "layers.0.up.weight: expected float32[9, 5], got float32[7, 5]"),
        ({"depth": 2}, "layers.2"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_by_name(saved, sizes, difference):
    path, _ = saved
    texts = run_ranks(load_other, 2, path, sizes)
    assert texts[0] == texts[1]
    assert difference in texts[0]
