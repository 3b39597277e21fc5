"""A signal ends a run after its step, with a checkpoint; a second one ends it at once."""

import os
import pty
import signal
import subprocess
import sys
import time

import pytest
from packages.fsdp_runtime.tests.trainer.commands import Command, small_run, steps_of

from sshsdp_fsdp_runtime.trainer import main, stop

LONG = ["--steps", "100000", "--report.checkpoint-every", "1000000", "--name", "run"]
PATIENCE = 60.0  # seconds, on a machine that does other things too
hang_up = pytest.mark.skipif(
    signal.SIGHUP not in stop.SIGNALS, reason="the tests were started to outlive their terminal"
)


def started(folder, *options):
    process = Command(folder, *small_run(folder), *LONG, *options)
    metrics = folder / "runs/run/metrics.jsonl"
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        if metrics.exists() and metrics.read_text().count("\n") > 5:
            return process
        time.sleep(0.02)
    raise AssertionError(process.communicate(timeout=0))


@pytest.mark.parametrize(
    ("signum", "status", "ranks"),
    [
        (signal.SIGINT, 130, "2"),
        (signal.SIGTERM, 143, "1"),
        pytest.param(signal.SIGHUP, 129, "2", marks=hang_up),
    ],
)
def test_a_signal_saves_and_the_run_can_go_on(tmp_path, signum, status, ranks):
    process = started(tmp_path, "--ranks", ranks)
    process.send_signal(signum)
    output, error = process.communicate(PATIENCE)
    assert process.returncode == status
    assert error == ""
    steps = max(steps_of(tmp_path / "runs/run"))
    assert output.splitlines()[-1].startswith(f"interrupted: steps={steps} ")
    resume = ["--resume", str(tmp_path / "runs/run"), "--steps", str(steps + 2)]
    assert main(["train", *resume]) == 0
    assert list(steps_of(tmp_path / "runs/run")) == list(range(1, steps + 3))


@pytest.mark.usefixtures("pictures")
def test_ctrl_c_reaches_the_ranks_too_and_disturbs_nobody(tmp_path):
    """A terminal sends SIGINT to the whole process group."""
    process = started(tmp_path)
    ranks = process.ranks()
    assert len(ranks) == 2
    for pid in (*ranks, process.pid):
        os.kill(pid, signal.SIGINT)
    output, error = process.communicate(PATIENCE)
    assert process.returncode == 130
    assert error == ""
    assert "interrupted: " in output


def test_a_killed_rank_ends_the_run_with_its_name(tmp_path):
    process = started(tmp_path)
    second = process.ranks()[1]
    os.kill(second, signal.SIGKILL)
    _, error = process.communicate(PATIENCE)
    assert process.returncode == 1
    assert error.splitlines()[-1].startswith("error: rank 1 of 2 failed: it was killed by SIGKILL")
    assert not os.path.exists(f"/proc/{second}")


def test_a_second_signal_ends_at_once(tmp_path):
    process = started(tmp_path)
    for pid in process.ranks():
        os.kill(pid, signal.SIGSTOP)  # the step never ends
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=10)
    assert process.returncode == 130
    assert output.endswith(
        "\ninterrupted again: ended at once; steps after the last checkpoint are lost\n"
    )
    assert error == ""
    assert not (tmp_path / "runs/run/checkpoints").exists()


@hang_up
def test_a_terminal_that_is_closed_ends_a_run_as_ctrl_c_does(tmp_path):
    run, options = tmp_path / "runs/run", [*small_run(tmp_path), *LONG]
    pid, terminal = pty.fork()
    if pid == 0:
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # pytest has replaced them
        os._exit(main(options))
    shown = b""
    while b"step " not in shown:
        shown += os.read(terminal, 1 << 16)
    os.close(terminal)  # the kernel sends SIGHUP; what is written from now on fails
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    steps = max(steps_of(run))
    assert (run / f"checkpoints/step-{steps:08d}").is_dir()


def test_a_run_that_is_started_to_outlive_its_terminal_does(tmp_path):
    # The module alone: the package would import torch.
    code = f"import runpy; print(*map(int, runpy.run_path({stop.__file__!r})['SIGNALS']))"
    command = ["nohup", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "15"]
