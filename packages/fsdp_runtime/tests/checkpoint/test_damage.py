"""A damaged description of a checkpoint is an error that says so, and changes nothing."""

import json

import pytest
from packages.fsdp_runtime.tests.checkpoint.cut_model import CutModel, StoreTransport

from sshsdp_fsdp_runtime.checkpoint import (
    CheckpointError,
    load_checkpoint,
    load_torch_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)


@pytest.fixture
def saved(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path / f"{step}", CutModel(StoreTransport(0, 1)), {"step": step})
    return tmp_path / "2"


def refusal(load, path, caplog, **options):
    model = CutModel(StoreTransport(0, 1), filled=False)
    with pytest.raises(CheckpointError) as error:
        load(path, model, **options)
    assert all(entry.tensor.isnan().all() for entry in model.entries)
    assert "Traceback" not in str(error.value) + caplog.text
    return str(error.value)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("at", [0, 0.5])
def test_a_changed_table_of_contents_is_noticed_at_once(saved, caplog, verify, at):
    content = bytearray((saved / ".metadata").read_bytes())
    content[int(at * len(content))] ^= 0xFF
    (saved / ".metadata").write_bytes(content)
    text = refusal(load_checkpoint, saved, caplog, verify=verify)
    assert "expected .metadata with checksum" in text
    assert "load an earlier one" in text
    assert newest_checkpoint(saved.parent).name == "1"


@pytest.mark.parametrize("content", [b"", b"junk", b"\x80\x04N."])
def test_a_table_of_contents_that_torch_can_not_read_is_named(saved, caplog, content):
    (saved / ".metadata").write_bytes(content)
    text = refusal(load_torch_checkpoint, saved, caplog, optimizer_key=None)
    assert "expected a readable .metadata in" in text
    assert "copy the folder again" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"world": None}, "damaged (KeyError: 'world')"),
        ({"files": [1]}, "damaged (AttributeError"),
        ({"extra": 3}, "damaged (TypeError"),
        ({"version": "x"}, "expected format version 2 or older"),
        ({"version": None}, "expected format version 2 or older"),
    ],
)
def test_a_manifest_without_what_a_save_writes_is_damaged(saved, caplog, change, message):
    file = saved / "manifest.json"
    content = json.loads(file.read_text()) | change
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    assert message in refusal(load_checkpoint, saved, caplog)
    assert newest_checkpoint(saved.parent).name == "1"
    assert "checkpoint passed over" in caplog.text


def test_a_manifest_that_can_not_be_read_is_no_missing_one(saved, caplog):
    (saved / "manifest.json").unlink()
    (saved / "manifest.json").mkdir()
    assert "expected a checkpoint that can be read, got" in refusal(load_checkpoint, saved, caplog)
    assert newest_checkpoint(saved.parent).name == "1"
