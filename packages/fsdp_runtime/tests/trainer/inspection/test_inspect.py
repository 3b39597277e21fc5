"""`sshsdp inspect` says what a checkpoint holds and whether it is good."""

import json
import shutil
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from packages.fsdp_runtime.tests.checkpoint.cut_model import CutModel, StoreTransport
from packages.fsdp_runtime.tests.trainer.commands import small_run
from torch import nn

from sshsdp_fsdp_runtime.checkpoint import save_checkpoint
from sshsdp_fsdp_runtime.trainer import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    nodes = ["--ranks", "2", "--nodes", "2", "--name", "run"]
    assert main([*small_run(folder), *nodes]) == 0
    return folder / "runs" / "run"


def inspect(capsys, *arguments):
    """Exit status, output and errors, unwrapped."""
    status = main(["inspect", *map(str, arguments)])
    return status, *capsys.readouterr()


def document(capsys, *arguments):
    status, output, error = inspect(capsys, *arguments, "--json", "-")
    assert (status, error) == (0, "")
    return json.loads(output)


def test_a_run_shows_its_newest_checkpoint(run, capsys):
    status, output, error = inspect(capsys, run)
    assert (status, error) == (0, "")
    lines = output.splitlines()
    assert lines[0].startswith(f"{run}/checkpoints/step-00000006: ")
    assert lines[0].endswith(", step 6, format 2")
    assert "by 2 ranks on 2 nodes, degrees 1,1,2 (" in lines[1]
    assert "files: whole (lengths and checksums)" in output
    assert "embed.weight" in output
    assert "2 of 64 x 160 float32" in output or "2 of 160 x 64 float32" in output
    assert "inf, nan" in output


def test_the_document_counts_every_tensor_and_byte(run, capsys):
    path = run / "checkpoints" / "step-00000004"
    found = document(capsys, path)
    manifest = json.loads((path / "manifest.json").read_text())
    assert found["step"] == 4
    assert found["world"] == 2
    assert found["layout"]["degrees"][0]["degrees"] == [1, 1, 2]
    rows = [row for row in found["rows"] if row["kind"] == "weights"]
    weights = [row for row in manifest["signature"] if row[0].startswith("model.")]
    assert sum(row["tensors"] for row in rows) == len(weights)
    elements = sum(torch.Size(shape).numel() for _, shape, _ in weights)
    assert sum(row["nbytes"] for row in rows) == 4 * elements
    assert sum(row["health"]["elements"] for row in rows) == elements
    assert {"exp_avg", "exp_avg_sq", "momentum_buffer"} & {row["kind"] for row in found["rows"]}
    assert all(row["health"]["not_finite"] == 0 for row in rows)
    assert all(row["rms"] <= row["health"]["largest"] for row in rows)


def test_quick_reads_no_values(run, capsys):
    found = document(capsys, run, "--quick")
    assert found["checked"] == "lengths"
    assert {row["health"] for row in found["rows"]} == {None}


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_damage_is_told_with_status_2(run, tmp_path, capsys):
    shutil.copytree(run / "checkpoints" / "step-00000006", tmp_path / "a")
    flip(tmp_path / "a" / "__1_0.distcp")
    status, output, error = inspect(capsys, tmp_path / "a")
    assert status == 2
    assert "files: damaged" in output
    assert error.startswith("error: expected __1_0.distcp with checksum")
    assert inspect(capsys, tmp_path / "a", "--quick")[0] == 0
    (tmp_path / "a" / "__1_0.distcp").unlink()
    assert inspect(capsys, tmp_path / "a", "--quick")[0] == 2


def test_values_that_are_not_finite_are_named(tmp_path, capsys):
    model = CutModel(StoreTransport(0, 1))
    entry = next(e for e in model.entries if e.key == "optimizer.state.cube.exp_avg")
    entry.tensor[3], entry.tensor[5] = torch.nan, torch.inf
    save_checkpoint(tmp_path / "a", model, {"seen": 7})
    status, output, _ = inspect(capsys, tmp_path / "a")
    assert status == 0
    assert "not finite: cube" in output
    assert "no step" in output
    assert "values: seen" in output
    (row,) = (
        row
        for row in document(capsys, tmp_path / "a")["rows"]
        if row["kind"] == "exp_avg" and row["names"] == "cube"
    )
    assert row["health"]["not_finite"] == 2


def test_checkpoints_of_other_programs_are_shown(tmp_path, capsys):
    layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": layers.state_dict()}, checkpoint_id=tmp_path / "plain")
    status, output, _ = inspect(capsys, tmp_path / "plain")
    assert status == 0
    assert "saved by another program" in output
    assert "{4}.weight" in output
    assert "4 of 3 x 3 float32" in output


def break_metadata(path):
    (path / ".metadata").write_bytes(b"not a pickle")


def break_manifest(path):
    (path / "manifest.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "error: expected a checkpoint, or a folder of some, got "),
        (break_metadata, "whose .metadata can't be read"),
        (break_manifest, "which is incomplete (no readable manifest.json"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_status_2(tmp_path, capsys, damage, message):
    save_checkpoint(tmp_path / "a", CutModel(StoreTransport(0, 1)), {})
    damage(tmp_path / "a")
    status, output, error = inspect(capsys, tmp_path / "a")
    assert (status, output) == (2, "")
    assert message in error
    assert "Traceback" not in error
