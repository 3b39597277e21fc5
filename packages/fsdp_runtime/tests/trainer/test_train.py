"""Whole runs: the same numbers for any number of ranks, unsharded, and across a resume."""

import re
import shutil
from importlib.util import find_spec

import pytest
from packages.fsdp_runtime.tests.trainer.commands import (
    resumed,
    small_run,
    steps_of,
    validation_losses,
)
from packages.fsdp_runtime.tests.trainer.plain_training import unsharded_losses

from sshsdp_fsdp_runtime.trainer import TrainConfig, main
from sshsdp_fsdp_runtime.trainer.configfile import read_config

LAST_LINE = re.compile(
    r"done: steps=6 val_loss=\d\.\d{4} tokens_per_s=\d+ peak_memory_gib=\d\.\d{3} run=\S+/runs/\w+"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs on one, two and four ranks, and on four ranks that act as two nodes."""
    folder = tmp_path_factory.mktemp("train")
    for ranks in (1, 2, 4):
        run = [*small_run(folder), "--ranks", str(ranks), "--name", f"on{ranks}"]
        assert main(run) == 0
    run = [*small_run(folder), "--ranks", "4", "--nodes", "2", "--name", "on2x2"]
    assert main(run) == 0
    return folder / "runs"


@pytest.mark.parametrize("ranks", ["1", "2", "4", "2x2"])
def test_losses_are_those_of_plain_pytorch(folder, ranks):
    losses = [loss for loss, _, _ in steps_of(folder / f"on{ranks}").values()]
    assert losses == pytest.approx(unsharded_losses(folder / f"on{ranks}"), abs=2e-5)
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.parametrize("ranks", ["2", "4", "2x2"])
def test_validation_losses_do_not_depend_on_the_ranks(folder, ranks):
    expected = validation_losses(folder / "on1")
    assert len(expected) == 2
    assert validation_losses(folder / f"on{ranks}") == pytest.approx(expected, abs=2e-5)


def test_a_run_folder_holds_everything(folder):
    names = {path.name for path in (folder / "on2").iterdir()}
    expected = {"config.toml", "data", "metrics.jsonl", "sample.txt", "checkpoints"}
    assert names == expected
    checkpoints = sorted(path.name for path in (folder / "on2/checkpoints").iterdir())
    assert checkpoints == ["step-00000004", "step-00000006"]
    assert read_config(folder / "on2/config.toml", TrainConfig).name == "on2"


@pytest.mark.usefixtures("pictures")
def test_the_output_ends_with_the_result(folder, capfd):
    assert main([*small_run(folder.parent), "--ranks", "2", "--name", "shown"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert LAST_LINE.fullmatch(lines[-1])
    assert f'runs = "{folder}"' in lines
    assert any("planned buffers" in line and "grad_norm" in line for line in lines)
    drawn = (folder / "shown/plot.png").exists()
    assert drawn == (find_spec("matplotlib") is not None)
    assert drawn != any("no picture: matplotlib is not installed" in line for line in lines)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_run_is_the_uninterrupted_run(folder, ranks):
    whole = folder / "on2"
    run = resumed(whole, ranks)
    if ranks == 2:
        assert steps_of(run) == steps_of(whole)
        assert validation_losses(run) == validation_losses(whole)
    else:
        expected = [loss for loss, _, _ in steps_of(whole).values()]
        losses = [loss for loss, _, _ in steps_of(run).values()]
        assert losses == pytest.approx(expected, abs=2e-5)


def test_a_checkpoint_of_another_model_is_refused(folder, capfd):
    other = folder / "other"
    shutil.copytree(folder / "on2", other)
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(config.replace('"nano"', '"nano"\nhidden = 96'))
    assert main(["train", "--resume", str(other), "--steps", "9"]) == 2
    error = capfd.readouterr().err
    assert "expected a checkpoint of this model" in error
    assert "Traceback" not in error


def test_a_run_with_another_seed_is_another_run(folder, capfd):
    assert main(["train", "--resume", str(folder / "on1"), "--steps", "9", "--seed", "1"]) == 2
    assert "expected seed as the run was started (0), got 1" in capfd.readouterr().err


def test_a_run_that_is_complete_needs_more_steps(folder, capfd):
    assert main(["train", "--resume", str(folder / "on1")]) == 2
    assert "expected more steps than the 6" in capfd.readouterr().err
