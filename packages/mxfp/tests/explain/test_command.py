"""The command as a person uses it."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from sshsdp_mxfp.explain import main, measure, name_of, parse_formats, summarize
from sshsdp_mxfp.explain.names import DEFAULT
from sshsdp_mxfp.explain.source import from_seed

pytest.importorskip("rich", reason="needs the extra explain")
pytest.importorskip("matplotlib", reason="needs the extra explain")

SMALL = ["explain", "--random", "--shape", "64x64"]


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """A terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")


def run(capsys, *arguments):
    status = main(list(arguments))
    return status, *capsys.readouterr()


def test_the_tables_name_every_format_and_fit_a_terminal(capsys):
    status, out, err = run(capsys, "explain", "--random", "rows", "--shape", "256x256")
    assert (status, err) == (0, "")
    for fmt in parse_formats(DEFAULT):
        assert out.count(f" {name_of(fmt)} ") >= 2
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    assert "ragged" not in out
    assert "Take e4m3:1x32:rceil" in out


def test_rows_of_the_table_hold_what_was_measured(capsys):
    _, out, _ = run(capsys, *SMALL, "--seed", "3", "--formats", "e2m1:1x32:floor")
    x = from_seed("normal", "64x64", 3)
    loss = measure(x, parse_formats("e2m1:1x32:floor")[0], summarize(x))
    row = next(line.split() for line in out.splitlines() if "e2m1:1x32:floor" in line)
    shares = [loss.worst, loss.saturated / 4096, loss.vanished / 4096, loss.subnormal / 4096]
    rms, worst, *rest = (f"{100 * value:.3g}%" for value in (loss.rms, *shares))
    assert row == ["e2m1:1x32:floor", "4.25", rms, f"{loss.decibels:.1f}", worst, *rest]


def test_json_holds_the_numbers(capsys, tmp_path):
    file = tmp_path / "out.json"
    status, _, _ = run(capsys, *SMALL, "--formats", "e4m3,e2m1:32x32", "--json", str(file))
    document = json.loads(file.read_text())
    assert status == 0
    assert document["tensor"]["shape"] == [64, 64]
    assert sum(document["tensor"]["exponents"].values()) == 4096
    first, second = document["formats"]
    assert (first["format"], second["format"]) == ("e4m3:1x32:rceil", "e2m1:32x32:rceil")
    assert sum(first["scale_codes"].values()) == 128
    assert sum(second["scale_codes"].values()) == 4
    assert 30 < first["snr_db"] < 33
    assert document["advice"].startswith("Take e4m3:1x32:rceil")


@pytest.mark.parametrize(
    "value", [0.0, 1.0, float("nan"), float("inf"), 1e-40, torch.finfo(torch.float32).max]
)
def test_tensors_of_one_value_are_shown_and_drawn(capsys, tmp_path, value):
    np.save(tmp_path / "x.npy", np.full((40, 70), value, dtype=np.float32))
    files = [tmp_path / "out.png", tmp_path / "out.json"]
    status, out, err = run(
        *(capsys, "explain", str(tmp_path / "x.npy")),
        *("--png", str(files[0]), "--json", str(files[1])),
    )
    assert (status, err) == (0, "")
    assert "40x70 float32" in out
    assert 'ragged="partial"' in out
    assert files[0].read_bytes().startswith(b"\x89PNG")
    json.loads(files[1].read_text(), parse_constant=pytest.fail)


def test_a_tensor_of_one_dimension_has_blocks_of_one_row(capsys, tmp_path):
    np.save(tmp_path / "x.npy", np.linspace(-1, 1, 100))
    status, out, _ = run(capsys, "explain", str(tmp_path / "x.npy"))
    assert status == 0
    assert "e4m3:1x32:rceil" in out
    assert "32x32" not in out
    status, _, err = run(capsys, "explain", str(tmp_path / "x.npy"), "--formats", "e4m3:32x32")
    assert status == 2
    assert "expected blocks of one row for a tensor of one dimension, as in e4m3:1x32" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain"], "error: expected a FILE or --random, one of the two"),
        (["explain", "x.npy", "--random", "rows"], "expected a FILE or --random, one of the two"),
        (["explain", "x.npy"], "error: expected a file, got x.npy, which is none"),
        (["explain", "x.npy", "--seed", "1"], "expected --shape and --seed with --random only"),
        ([*SMALL, "--tensor", "w"], "expected no --tensor with --random"),
        ([*SMALL, "--formats", "int8"], "expected formats of ELEMENT[:BLOCK[:RULE]]"),
        ([*SMALL, "--json", "/no/such/folder/x"], "expected a --json file that can be written"),
        ([*SMALL, "--png", "/no/such/folder/x"], "expected a --png file that can be written"),
        ([], "the following arguments are required: COMMAND"),
        (["explain", "--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_mistakes_are_one_line_and_status_2(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("library", ["rich", "matplotlib", "numpy", "safetensors"])
def test_without_the_extra_the_error_names_it(tmp_path, library):
    """A None in sys.modules makes its import fail, as where it isn't installed."""
    np.save(tmp_path / "x.npy", np.ones((2, 32)))
    (tmp_path / "x.safetensors").write_bytes(b"")
    arguments = {
        "rich": SMALL,
        "matplotlib": [*SMALL, "--png", "x.png"],
        "numpy": ["explain", "x.npy"],
        "safetensors": ["explain", "x.safetensors"],
    }[library]
    script = (
        f"import sys; sys.modules[{library!r}] = None\n"
        f"from sshsdp_mxfp.explain import main\nsys.exit(main({arguments!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert f"error: expected {library}" in done.stderr
    assert "do: pip install 'sshsdp-mxfp[explain]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_module_is_the_command():
    command = [sys.executable, "-W", "error", "-m", "sshsdp_mxfp", *SMALL, "--formats", "e4m3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Take e4m3:1x32:rceil" in done.stdout


def test_help_says_how_formats_are_written(capsys):
    status, out, _ = run(capsys, "explain", "--help")
    assert status == 0
    assert "ELEMENT[:BLOCK[:RULE]]" in out
