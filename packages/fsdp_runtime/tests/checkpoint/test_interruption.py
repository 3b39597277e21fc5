"""A checkpoint is whole or not there, and the newest whole one is found."""

import json
import os

import pytest
import torch
from packages.fsdp_runtime.tests.checkpoint.cut_model import CutModel, StoreTransport
from testing.ranks import run_ranks

from sshsdp_fsdp_runtime.checkpoint import (
    CheckpointError,
    IncompleteCheckpointError,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from sshsdp_fsdp_runtime.runtime import FragmentTensor


def single(**kwargs):
    return CutModel(StoreTransport(0, 1), **kwargs)


def save_ranks(rank, path, step, dies):
    # Who loses a rank waits this long, and nobody else does.
    timeout = 5.0 if dies is None else 1.5
    transport = StoreTransport(rank.rank, rank.world, rank.store, timeout=timeout)
    model = CutModel(transport)
    if rank.rank == dies:
        # The shards are handed out while the files are written.
        FragmentTensor.__get_tensor_shard__ = lambda *_: os._exit(9)
    elif dies is not None:
        with pytest.raises(Exception, match=r"rank|[Cc]onnection|[Tt]imeout"):
            save_checkpoint(path, model, {"step": step})
        return
    save_checkpoint(path, model, {"step": step})


@pytest.mark.parametrize("dies", [0, 1])
def test_a_rank_that_dies_while_saving_leaves_the_previous_checkpoint_the_newest(tmp_path, dies):
    run_ranks(save_ranks, 2, tmp_path / "step-1", 1, None)
    run_ranks(save_ranks, 2, tmp_path / "step-2", 2, dies, expect_death=(dies,))
    assert not (tmp_path / "step-2").exists()
    assert newest_checkpoint(tmp_path) == tmp_path / "step-1"
    run_ranks(save_ranks, 2, tmp_path / "step-2", 2, None)
    assert newest_checkpoint(tmp_path) == tmp_path / "step-2"
    assert sorted(os.listdir(tmp_path)) == ["step-1", "step-2"]
    model = single(filled=False)
    load_checkpoint(tmp_path / "step-2", model)
    model.assert_exact()


def fail_on_one_rank(rank, path):
    transport = StoreTransport(rank.rank, rank.world, rank.store)
    if rank.rank == 1:

        def fail(*_):
            raise OSError("no space left on this rank")

        FragmentTensor.__get_tensor_shard__ = fail
    with pytest.raises(CheckpointError) as error:
        save_checkpoint(path, CutModel(transport), {})
    transport.barrier()
    return str(error.value), os.listdir(path.parent)


def test_a_rank_that_fails_while_saving_fails_all_alike_and_leaves_nothing(tmp_path):
    answers = run_ranks(fail_on_one_rank, 3, tmp_path / "step-1")
    assert answers == [("rank 1: OSError: no space left on this rank", [])] * 3


def remove_manifest(folder):
    (folder / "manifest.json").unlink()


def cut_manifest(folder):
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text[: len(text) // 2])


def remove_data(folder):
    next(folder.glob("*.distcp")).unlink()


def cut_data(folder):
    os.truncate(next(folder.glob("*.distcp")), 100)


def remove_metadata(folder):
    (folder / ".metadata").unlink()


@pytest.mark.parametrize(
    "damage", [remove_manifest, cut_manifest, remove_data, cut_data, remove_metadata]
)
def test_a_torn_folder_is_refused_by_name_and_passed_over(tmp_path, damage):
    save_checkpoint(tmp_path / "a", single(), {"step": 1})
    save_checkpoint(tmp_path / "b", single(), {"step": 2})
    damage(tmp_path / "b")
    model = single(filled=False)
    with pytest.raises(IncompleteCheckpointError, match=r"/b, which is incomplete"):
        load_checkpoint(tmp_path / "b", model)
    assert all(entry.tensor.isnan().all() for entry in model.entries)
    assert newest_checkpoint(tmp_path) == tmp_path / "a"


def test_an_unfinished_folder_is_not_the_newest_even_with_a_manifest(tmp_path):
    save_checkpoint(tmp_path / "a", single(), {"step": 1})
    save_checkpoint(tmp_path / "b", single(), {"step": 2})
    (tmp_path / "b").rename(tmp_path / ".b.unfinished")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes.txt").touch()
    assert newest_checkpoint(tmp_path) == tmp_path / "a"


def test_newest_is_the_highest_step_then_the_latest(tmp_path):
    assert newest_checkpoint(tmp_path / "nowhere") is None
    for name, step in (("z", 9), ("y", 10), ("x", 10)):
        save_checkpoint(tmp_path / name, single(), {"step": step})
    assert newest_checkpoint(tmp_path) == tmp_path / "x"


def test_an_existing_checkpoint_is_never_overwritten(tmp_path):
    save_checkpoint(tmp_path / "a", single(), {"step": 1})
    with pytest.raises(CheckpointError, match=r"/a, which exists; choose another or delete"):
        save_checkpoint(tmp_path / "a", single(), {"step": 2})
    assert load_checkpoint(tmp_path / "a", single())["step"] == 1


def test_a_newer_format_is_refused(tmp_path):
    save_checkpoint(tmp_path / "a", single(), {})
    content = json.loads((tmp_path / "a" / "manifest.json").read_text())
    (tmp_path / "a" / "manifest.json").write_text(json.dumps(content | {"version": 3}))
    with pytest.raises(CheckpointError, match=r"format version 2 or older in .*/a, got 3"):
        load_checkpoint(tmp_path / "a", single())


@pytest.mark.parametrize("missing", ["nowhere", "file"])
def test_a_path_without_a_folder_is_refused(tmp_path, missing):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="expected a checkpoint folder, got"):
        load_checkpoint(tmp_path / missing, single())


def test_saving_leaves_the_tensors_alone(tmp_path):
    model = single()
    before = [entry.tensor.clone() for entry in model.entries]
    save_checkpoint(tmp_path / "a", model, {})
    for entry, saved in zip(model.entries, before, strict=True):
        assert torch.equal(entry.tensor, saved)
    assert model.loaded == 0
