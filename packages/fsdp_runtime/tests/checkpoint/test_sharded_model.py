"""A sharded model trains on after a restart as if it had never stopped, at any world size."""

import pytest
import torch
import torch.distributed as dist
from testing.models import TiedModel
from testing.ranks import run_ranks
from torch.nn import functional

from sshsdp_fsdp_runtime import Cast, Sharding, Update, fully_shard, is_matrix
from sshsdp_fsdp_runtime.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from sshsdp_shardchain import Degrees
from sshsdp_updates import AdamW, Muon, NorMuon
from sshsdp_zerosm import connect

STEPS = 2


def shard(rank, form, seed, degrees=None):
    torch.manual_seed(seed)
    if rank.world > 1:
        dist.init_process_group("gloo", store=rank.store, rank=rank.rank, world_size=rank.world)
    degrees = degrees or (rank.world,) * 3
    return fully_shard(
        TiedModel(),
        sharding=[Sharding("**", Degrees(*degrees))],
        formats=[Cast("**", torch.bfloat16)],  # so that loaded main weights have to be cast again
        updates=[
            Update("layers.*.up.weight", NorMuon(lr=1e-2, ns_dtype=torch.float32)),
            Update("layers.**", Muon(lr=1e-2, ns_dtype=torch.float32), where=is_matrix),
            Update("**", AdamW(lr=1e-2)),
        ],
        transport=connect(rank.rank, rank.world, rank.store, timeout=30),
        form=form,
    )


def train(model, steps):
    for step in steps:
        ids = torch.randint(0, 13, (2, 6), generator=torch.Generator().manual_seed(step))
        functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        model.optimizer.step()
        model.optimizer.zero_grad()


def values(model):
    """Everything that decides the further course, as lists: they travel between processes."""
    scalars = model.checkpoint_scalars()
    return {n: v.tolist() for n, v in model.full_state_dict().items()}, scalars


def save_and_go_on(rank, root, form, degrees=None):
    model = shard(rank, form, 0, degrees)
    model.optimizer.param_groups[0]["lr"] = 3e-2
    train(model, range(STEPS))
    save_checkpoint(root / "saved", model, {"step": STEPS})
    saved = values(model)
    train(model, range(STEPS, 2 * STEPS))
    return saved, values(model)


def resume(rank, root, form, degrees=None):
    model = shard(rank, form, 1, degrees)
    extra = load_checkpoint(newest_checkpoint(root), model)
    loaded = values(model)
    train(model, range(extra["step"], 2 * STEPS))
    return loaded, values(model)


@pytest.mark.parametrize(
    ("degrees", "form"),
    [
        ((1, 1, 1), "private"),
        ((2, 2, 2), "private"),
        ((2, 2, 2), "shared"),
        ((1, 1, 2), "private"),
        ((2, 2, 4), "shared"),
    ],
)
def test_restarted_is_uninterrupted_bit_for_bit(tmp_path, degrees, form):
    world = degrees[-1]
    expected = run_ranks(save_and_go_on, world, tmp_path, form, degrees)
    assert run_ranks(resume, world, tmp_path, form, degrees) == expected


@pytest.mark.parametrize(
    ("saves", "of_saves", "loads", "of_loads"),
    [
        (3, (3, 3, 3), 2, (2, 2, 2)),
        (2, (1, 1, 1), 3, (3, 3, 3)),
        (2, (2, 2, 2), 1, (1, 1, 1)),
        (4, (1, 2, 4), 3, (1, 3, 3)),
    ],
)
def test_another_world_and_other_degrees_load_the_same_values(
    tmp_path, saves, of_saves, loads, of_loads
):
    (saved, _), *_ = run_ranks(save_and_go_on, saves, tmp_path, "private", of_saves)
    for loaded, _ in run_ranks(resume, loads, tmp_path, "private", of_loads):
        assert loaded == saved
