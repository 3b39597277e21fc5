"""What any number of ranks saved, any other number of ranks and plain PyTorch load exactly."""

import itertools
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from packages.fsdp_runtime.tests.checkpoint.cut_model import (
    FIELDS,
    SHAPES,
    CutModel,
    StoreTransport,
    logical,
)
from testing.ranks import run_ranks
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from sshsdp_fsdp_runtime.checkpoint import load_checkpoint, save_checkpoint
from sshsdp_fsdp_runtime.runtime import FragmentTensor

WORLDS = (1, 2, 3, 4)
CUTS = [(world, zero1) for world in WORLDS for zero1 in range(1, world + 1) if world % zero1 == 0]


def save_all(rank, root):
    transport = StoreTransport(rank.rank, rank.world, rank.store)
    for world, zero1 in CUTS:
        if world == rank.world:
            save_checkpoint(root / f"{world}-{zero1}", CutModel(transport, zero1), {"step": world})


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    for world in WORLDS:
        run_ranks(save_all, world, root)
    return root


def load_all(rank, root):
    transport = StoreTransport(rank.rank, rank.world, rank.store)
    for world, zero1 in CUTS:
        model = CutModel(transport, filled=False)
        extra = load_checkpoint(root / f"{world}-{zero1}", model)
        model.assert_exact()
        assert extra == {"step": world}
        assert model.scalars == CutModel(transport).scalars
        assert model.loaded == 1


@pytest.mark.parametrize("world", WORLDS)
def test_every_world_loads_what_every_cut_saved(checkpoints, world):
    run_ranks(load_all, world, checkpoints)


def load_plain(folder, state):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        dcp.load(state, checkpoint_id=folder)


@pytest.mark.parametrize("cut", CUTS)
def test_a_plain_program_loads_by_logical_names(checkpoints, cut):
    weights = {name: torch.full_like(logical(name), torch.nan) for name in SHAPES}
    states = {
        name: {kind: torch.full_like(logical(name), torch.nan) for kind in FIELDS}
        for name in SHAPES
    }
    load_plain(
        checkpoints / "{}-{}".format(*cut), {"model": weights, "optimizer": {"state": states}}
    )
    for name in SHAPES:
        assert torch.equal(weights[name], logical(name))
        for kind in FIELDS:
            assert torch.equal(states[name][kind], logical(name, kind=kind))


def test_torch_converts_it_to_one_nested_file(checkpoints, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dcp_to_torch_save(checkpoints / "3-3", tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert set(whole["model"]) == set(SHAPES)
    assert torch.equal(
        whole["optimizer"]["state"]["cube"]["exp_avg"], logical("cube", kind=FIELDS[0])
    )


def save_state_dict(rank, folder):
    dist.init_process_group("gloo", store=rank.store, rank=rank.rank, world_size=rank.world)
    flat = logical("cube").reshape(-1)
    bounds = [0, 40, 40, flat.numel()]
    start, stop = bounds[rank.rank : rank.rank + 2]
    state = {"model": {"cube": FragmentTensor(flat[start:stop], SHAPES["cube"], start)}}
    dcp.save(state, checkpoint_id=folder)
    into = torch.full((stop - start,), torch.nan)
    dcp.load({"model": {"cube": FragmentTensor(into, SHAPES["cube"], start)}}, checkpoint_id=folder)
    assert torch.equal(into, flat[start:stop])


def test_fragments_work_in_torchs_own_save_and_load(tmp_path):
    run_ranks(save_state_dict, 3, tmp_path / "plain")
    cube = {"cube": torch.zeros(SHAPES["cube"])}
    load_plain(tmp_path / "plain", {"model": cube})
    assert torch.equal(cube["cube"], logical("cube"))


def save_few(rank, folder):
    shapes = {"weight": (1, 4), "bias": (1,)}
    transport = StoreTransport(rank.rank, rank.world, rank.store)
    save_checkpoint(folder, CutModel(transport, shapes=shapes), {})


def load_few(rank, folder):
    shapes = {"weight": (1, 4), "bias": (1,)}
    model = CutModel(StoreTransport(rank.rank, rank.world, rank.store), shapes=shapes, filled=False)
    load_checkpoint(folder, model)
    model.assert_exact()
    return [entry.stop - entry.start for entry in model.entries]


def test_more_ranks_than_rows_resume(tmp_path):
    run_ranks(save_few, 2, tmp_path / "few")
    sizes = run_ranks(load_few, 8, tmp_path / "few")
    assert 0 in itertools.chain.from_iterable(sizes)
