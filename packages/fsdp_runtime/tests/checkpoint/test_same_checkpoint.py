"""All ranks load one checkpoint, or none of them loads anything."""

import shutil

import pytest
import torch
from packages.fsdp_runtime.tests.checkpoint.cut_model import CutModel, StoreTransport
from testing.ranks import run_ranks

from sshsdp_fsdp_runtime.checkpoint import (
    CheckpointError,
    export_safetensors,
    load_checkpoint,
    load_safetensors,
    load_torch_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)


def load_weights(path, model):
    load_torch_checkpoint(path, model, optimizer_key=None)


LOADS = (load_checkpoint, load_weights, load_safetensors)


@pytest.fixture
def saved(tmp_path):
    """Two saves of models that differ in the last element of one tensor, and a copy."""
    model = CutModel(StoreTransport(0, 1))
    for step in (1, 2):
        save_checkpoint(tmp_path / f"step-{step}", model, {"step": step})
        export_safetensors(tmp_path / f"step-{step}", model)
        model.entries[2].tensor[-1] += 1
    shutil.copytree(tmp_path / "step-1", tmp_path / "copy")
    return tmp_path


def filled_in(model):
    """Whether a load has changed the model."""
    weights = [entry.tensor for entry in model.entries if entry.tensor.numel()]
    changed = [not tensor.isnan().any() for tensor in weights]
    assert model.loaded or not any(changed)
    return any(changed)


def refusal(load, path, model):
    with pytest.raises(CheckpointError) as error:
        load(path, model)
    assert not filled_in(model)
    return str(error.value)


def load_each(rank, folder):
    def fresh():
        return CutModel(transport, filled=False)

    transport = StoreTransport(rank.rank, rank.world, rank.store)
    texts = []
    for load in LOADS:
        texts.append(refusal(load, folder / f"step-{1 + rank.rank // 2}", fresh()))
        model = fresh()
        load(folder / ("copy" if rank.rank == 1 else "step-1"), model)
        assert filled_in(model)
        texts.append(refusal(load, None if rank.rank == 2 else folder / "step-1", fresh()))
        texts.append(refusal(load, newest_checkpoint(folder / "empty"), fresh()))
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(folder / "step-1", fresh(), fresh=["matrix"] if rank.rank == 2 else [])
    return [*texts, str(error.value)]


def test_ranks_that_give_other_checkpoints_load_none_and_all_say_which(saved):
    answers = run_ranks(load_each, 3, saved)
    assert answers[0] == answers[1] == answers[2]
    *texts, fresh = answers[0]
    one, two = saved / "step-1", saved / "step-2"
    there_is_none = "expected a checkpoint, got None: there is none yet"
    for other, one_has_none, all_have_none in zip(*[iter(texts)] * 3, strict=True):
        assert f"got {one} on rank 0 and another one, {two}, on rank 2; choose it on one" in other
        assert one_has_none.startswith(f"rank 2: {there_is_none}")
        assert all_have_none.startswith(there_is_none)
    assert "the same arguments on all ranks, got [] on rank 0 and ['matrix'] on rank 2" in fresh


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize(
    ("path", "found"), [(3, "int"), (b"a", "bytes"), (torch.ones(1), "Tensor")]
)
def test_what_is_no_path_is_refused(load, path, found):
    model = CutModel(StoreTransport(0, 1), filled=False)
    assert f"expected the path of a checkpoint, got {found}" in refusal(load, path, model)
