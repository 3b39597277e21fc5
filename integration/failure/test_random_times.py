"""Ctrl-C at times that nobody chose: the run ends in order, and nothing stays behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from integration.failure.leftovers import children, nothing_stays
from packages.fsdp_runtime.tests.trainer.commands import Command, small_run, steps_of

from sshsdp_fsdp_runtime.checkpoint import newest_checkpoint
from sshsdp_fsdp_runtime.trainer import main

PATIENCE = 60.0  # seconds, on a machine that does other things too
OPTIONS = ("--name", "run")
STEPS = 6
MIDDLE = 10  # a seed


@dataclass(frozen=True)
class Life:
    """A run that nothing happens to.

    Attributes:
        seconds: from its start to its end.
        steps: what it reports.
    """

    seconds: float
    steps: dict[int, tuple[float, float, float]]


@pytest.fixture(autouse=True)
def no_torchrun(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    process = started(folder)
    start = time.monotonic()
    assert process.communicate(PATIENCE)[1] == ""
    return Life(time.monotonic() - start, steps_of(folder / "runs/run"))


def started(folder):
    """The command, when it has begun to take signals; before, and after it, they do nothing."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = Command(folder, *small_run(folder), *OPTIONS)
    finally:
        signal.signal(signal.SIGINT, before)
    wait_until_it_takes_signals(process)
    return process


def wait_until_it_takes_signals(process):
    """Until it has the handler that it installs last."""
    deadline = time.monotonic() + PATIENCE
    while not takes(process.pid, signal.SIGTERM):
        assert process.poll() is None, "it ended before it began"
        assert time.monotonic() < deadline
        time.sleep(0.001)


def takes(pid, signum):
    """Whether a process has a handler for a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(mask >> (signum - 1) & 1)


def interrupt(pid, *, everyone):
    """Ctrl-C; `everyone`: of a terminal, which sends it to the ranks too."""
    for each in (pid, *(children(pid) if everyone else ())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGINT)


def steps_done(run):
    """Number of steps that a run has reported; 0 where it has not begun."""
    return max(steps_of(run), default=0)


def seeds(count):
    """The one in the middle of training by default, the rest as part of the slow grid."""
    slow = [pytest.param(seed, marks=pytest.mark.full) for seed in range(count)]
    return [*slow[:MIDDLE], MIDDLE, *slow[MIDDLE + 1 :]]


@pytest.mark.parametrize("twice", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("seed", seeds(40))
def test_ctrl_c_at_a_random_time_ends_the_run_in_order(tmp_path, life, seed, twice):
    random = Random(f"{seed} {twice}")
    everyone = random.random() < 0.5
    first = random.uniform(0, 1.1 * life.seconds)
    delays = (first, random.choice((0.0, 0.05, life.seconds)) * random.random())[: 1 + twice]
    with nothing_stays():
        process = started(tmp_path)
        seen = STEPS
        for delay in delays:
            time.sleep(delay)  # the times are what is tested
            seen = min(seen, steps_done(tmp_path / "runs/run"))
            interrupt(process.pid, everyone=everyone)
        output, error = process.communicate(PATIENCE)
        assert not children(os.getpid())
    assert process.returncode in (130, 0)
    assert error == ""
    run = tmp_path / "runs/run"
    done = steps_done(run)
    newest = newest_checkpoint(run / "checkpoints", contents=True)
    if seen < 2:  # far from the end, a signal has to count
        assert process.returncode == 130
    assert (process.returncode == 0) == (f"\ndone: steps={STEPS} " in output)
    if process.returncode and not twice and 0 < done < STEPS:
        assert output.splitlines()[-1].startswith(f"interrupted: steps={done} ")
        assert newest.name == f"step-{done:08d}"
    if newest is not None and newest.name != f"step-{STEPS:08d}":
        assert main(["train", "--resume", str(run)]) == 0
        assert steps_of(run) == life.steps
        assert not list((run / "checkpoints").glob(".*"))


@pytest.mark.full
def test_ctrl_c_after_the_last_line_does_nothing(tmp_path):
    """Python and torch tidy up for a while after the run; an interrupt there is a traceback."""
    command = [sys.executable, "-m", "sshsdp_fsdp_runtime.trainer", *small_run(tmp_path), *OPTIONS]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            if line.startswith("done: "):
                break
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.002)
        assert process.returncode == 0
        assert process.stderr.read() == ""
