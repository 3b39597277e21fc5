"""`sshsdp compare` finds where two runs part."""

import json
import shutil

import pytest
from packages.fsdp_runtime.tests.trainer.commands import small_run

from sshsdp_fsdp_runtime.trainer import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run, the same again, and one that is another from its fourth step on."""
    folder = tmp_path_factory.mktemp("compare")
    for name, background in (("one", False), ("same", True)):
        options = ["--report.background-checkpoints"] if background else []
        assert main([*small_run(folder), "--ranks", "2", "--name", name, *options]) == 0
    root = folder / "runs"
    shutil.copytree(root / "one", root / "other")
    shutil.rmtree(root / "other" / "checkpoints")
    rows = [json.loads(row) for row in (root / "one" / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if row["kind"] == "step" and row["step"] >= 4:
            row["loss"] *= 1 + 1e-6
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (root / "other" / "metrics.jsonl").write_text(text)
    return root


def compare(capsys, *arguments):
    status = main(["compare", *map(str, arguments)])
    return status, *capsys.readouterr()


def document(capsys, *arguments):
    status, output, error = compare(capsys, *arguments, "--json", "-")
    assert error == ""
    return status, json.loads(output)


def test_a_run_is_the_same_as_itself(runs, capsys):
    status, output, error = compare(capsys, runs / "one", runs / "one")
    assert (status, error) == (0, "")
    assert "configuration: the same" in output
    assert "numbers of all common steps: the same" in output
    assert "checkpoints step-00000006: the same, bit for bit" in output
    assert "val_loss" in output


def test_checkpoints_in_the_background_change_no_number(runs, capsys):
    status, found = document(capsys, runs / "one", runs / "same")
    assert status == 1
    assert [row["key"] for row in found["config"]] == ["report.background_checkpoints"]
    assert found["first_step"] is None
    assert found["checkpoints"] is not None
    assert found["tensors"] == []
    names = sorted(path.name for path in (runs / "same" / "checkpoints").iterdir())
    assert names[-1] == "step-00000006"


def test_the_first_step_that_differs_is_named(runs, capsys):
    status, output, _ = compare(capsys, runs / "one", runs / "other", "--rows", "2")
    assert status == 1
    assert "first differing step: 4 (loss)" in output
    shown = [line.split()[0] for line in output.splitlines() if line.strip()[:1].isdecimal()]
    assert shown == ["6", "1", "4", "6"]  # the title says how many there are
    status, output, _ = compare(capsys, runs / "one", runs / "other", "--tolerance", "1e-4")
    assert status == 0


def test_two_checkpoints_differ_in_their_tensors(runs, capsys):
    folder = runs / "one" / "checkpoints"
    pair = folder / "step-00000004", folder / "step-00000006"
    status, found = document(capsys, *pair, "--tensors", "3")
    assert status == 1
    assert len(found["tensors"]) == 3
    assert all(row["largest"] > 0 for row in found["tensors"])
    status, output, _ = compare(capsys, *pair)
    assert "first differing tensor model." in output
    assert "elements, by up to" in output


@pytest.mark.parametrize(
    ("second", "options", "message"),
    [
        ("nowhere", (), "expected a run folder with a config.toml, got"),
        ("one/checkpoints/step-00000006", (), "expected two runs or two checkpoints, got one of"),
        ("one", ("--rows", "0"), "expected --rows >= 1, got 0"),
    ],
)
def test_bad_input_is_an_error_with_status_2(runs, capsys, second, options, message):
    status, output, error = compare(capsys, runs / "one", runs / second, *options)
    assert (status, output) == (2, "")
    assert error.startswith(f"error: {message}")


def test_damaged_numbers_are_an_error_that_names_the_line(runs, capsys, tmp_path):
    shutil.copytree(runs / "one", tmp_path / "one")
    metrics = tmp_path / "one" / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join([lines[0], b"{\x90}\n", *lines[2:]]))
    status, output, error = compare(capsys, runs / "one", tmp_path / "one")
    assert (status, output) == (2, "")
    assert error.startswith("error: expected a row of JSON with kind and step in line 2 of")
    assert "delete that line" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("nbytes", [100, 0])
def test_a_damaged_checkpoint_is_an_error_that_names_the_file(
    runs, capsys, caplog, tmp_path, file, nbytes
):
    shutil.copytree(runs / "one", tmp_path / "one")
    damaged = tmp_path / "one" / "checkpoints" / "step-00000006"
    (damaged / file).write_bytes(bytes(nbytes))
    status, output, error = compare(capsys, runs / "one", tmp_path / "one")
    assert (status, output, caplog.text) == (2, "", "")
    assert "Traceback" not in error
    assert error.startswith(f"error: expected {file} of ")
    assert "copy the folder again or load an earlier one" in error
