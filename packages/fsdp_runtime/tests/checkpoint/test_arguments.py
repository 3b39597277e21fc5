"""What can't be saved is refused with what to give instead, and nothing is written."""

from pathlib import Path

import pytest
from packages.fsdp_runtime.tests.checkpoint.cut_model import CutModel, StoreTransport
from torch import nn

from sshsdp_fsdp_runtime.checkpoint import (
    CheckpointError,
    export_safetensors,
    load_checkpoint,
    load_safetensors,
    load_torch_checkpoint,
    save_checkpoint,
)

SAVES = {
    "save": lambda path, model: save_checkpoint(path, model, {}),
    "asynchronous": lambda path, model: save_checkpoint(path, model, {}, asynchronous=True),
    "export": export_safetensors,
}
LOADS = {
    "checkpoint": load_checkpoint,
    "torch": load_torch_checkpoint,
    "safetensors": load_safetensors,
}


@pytest.mark.parametrize(("extra", "found"), [(None, "NoneType"), ([1], "list"), ("a", "str")])
def test_extra_is_a_dict(tmp_path, extra, found):
    with pytest.raises(CheckpointError, match=f"a dict as extra, got {found}; give {{}} to save"):
        save_checkpoint(tmp_path / "a", CutModel(StoreTransport(0, 1)), extra)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["", ".", "/", Path()])
def test_a_path_without_a_name_is_refused(path):
    with pytest.raises(CheckpointError, match=r"path of a new folder, got '.', which has no name"):
        save_checkpoint(path, CutModel(StoreTransport(0, 1)), {})


def test_bytes_of_a_file_are_a_number(tmp_path):
    with pytest.raises(TypeError, match="as a number of bytes, got '5GB'; give an int"):
        export_safetensors(tmp_path, CutModel(StoreTransport(0, 1)), max_shard_bytes="5GB")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", [*SAVES.values(), *LOADS.values()], ids=[*SAVES, *LOADS])
def test_a_plain_model_is_refused(tmp_path, call):
    with pytest.raises(
        TypeError, match=r"after fully_shard\(\), got Linear; shard it first, or use"
    ):
        call(tmp_path / "a", nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"after fully_shard\(\), got .*Path"):
        call(nn.Linear(2, 2), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", [*SAVES.values(), *LOADS.values()], ids=[*SAVES, *LOADS])
@pytest.mark.parametrize(("path", "shown"), [(5, "int"), (b"a", "bytes"), ("a\0b", r"'a\\x00b'")])
def test_what_is_no_path_is_refused(call, path, shown):
    with pytest.raises(
        CheckpointError, match=f"path of a checkpoint, got {shown}; give a str or a"
    ):
        call(path, CutModel(StoreTransport(0, 1)))


@pytest.mark.parametrize("call", SAVES.values(), ids=SAVES)
@pytest.mark.parametrize("place", ["/proc/nowhere", "/proc/nowhere/a", "file/a", "file/a/b"])
def test_a_place_where_nothing_can_be_written_is_refused(tmp_path, call, place):
    (tmp_path / "file").write_text("kept")
    text = f"path where files can be made, got .*{place}: .*Error: .*; choose another one, or make"
    with pytest.raises(CheckpointError, match=text):
        call(tmp_path / place, CutModel(StoreTransport(0, 1)))
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("call", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("there", [False, True])
def test_a_folder_without_a_checkpoint_says_what_to_give(tmp_path, call, there):
    if there:
        (tmp_path / "a").mkdir()
    with pytest.raises(
        CheckpointError, match=r"expected .*, got .*/a[,;].*(check|give|load an ear)"
    ):
        call(tmp_path / "a", CutModel(StoreTransport(0, 1)))
