"""What can't be saved is refused with what to give instead, and nothing is written."""

from pathlib import Path

import pytest
from packages.fsdp_runtime.tests.checkpoint.cut_model import CutModel, StoreTransport

from sshsdp_fsdp_runtime.checkpoint import CheckpointError, export_safetensors, save_checkpoint


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
