"""A run of the command that a rank can't finish: one account, nobody left, and it goes on equal."""

import os
import resource
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from integration.failure.leftovers import children, nothing_stays
from integration.failure.namespaces import NotPermittedError, small_disk
from integration.failure.victims import FATES
from packages.fsdp_runtime.tests.trainer.commands import Command, small_run, steps_of

import sshsdp_fsdp_runtime.trainer.rank as rank_module
from sshsdp_fsdp_runtime.checkpoint import newest_checkpoint
from sshsdp_fsdp_runtime.trainer import cli, launch, main, prepare, session
from sshsdp_fsdp_runtime.trainer.evaluation import Evaluation
from sshsdp_fsdp_runtime.trainer.loop import Loop

PATIENCE = 60.0  # seconds, on a machine that does other things too
OPTIONS = ("--ranks", "3", "--batch", "6", "--name", "run")


def exhaust_memory() -> None:
    """What a limit on memory does: an allocation fails in the middle of a step."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    torch.ones(1 << 28)


@pytest.fixture(autouse=True)
def no_torchrun(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def on_rank(monkeypatch):
    """``on_rank(rank, owner, name, call, action)``: before that call on that rank, do this too."""
    own = [LAUNCHER]
    train_rank = cli.train_rank

    def begin(run, seat, open_session):
        own[0] = seat.rank
        return train_rank(run, seat, open_session)

    monkeypatch.setattr(cli, "train_rank", begin)

    def install(rank: int, owner: object, name: str, call: int, action: Callable[[], None]) -> None:
        original = getattr(owner, name)
        calls = 0

        def wrapped(*args, **kwargs):
            nonlocal calls
            calls += own[0] == rank
            if own[0] == rank and calls == call:
                action()
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapped)

    return install


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Losses of the run when nothing happens to it."""
    folder = tmp_path_factory.mktemp("reference")
    assert main([*small_run(folder), *OPTIONS]) == 0
    return steps_of(folder / "runs/run")


def ended(process: Command) -> tuple[str, str]:
    """Its outputs; everyone whom it started has ended too."""
    outputs = process.communicate(PATIENCE)
    assert not children(os.getpid())
    return outputs


ACCOUNTS = {
    "kill": "rank 1 of 3 failed: it was killed by SIGKILL (often: out of memory)",
    "stop": "rank 1 of 3 failed: it gave no answer for 1 s after rank ",
    "fail": "rank 1 of 3 failed: OwnError: of this rank alone",
    "leave": "rank 1 of 3 failed: it exited with status 3 and without a result",
    "memory": "rank 1 of 3 failed: RuntimeError: ",
}
MEANS = {**FATES, "memory": exhaust_memory}


def some(names, few):
    """All of `names`; those that are not in `few` are part of the slow grid."""
    return [name if name in few else pytest.param(name, marks=pytest.mark.full) for name in names]


@pytest.mark.parametrize("fate", some(ACCOUNTS, ("kill", "stop")))
def test_a_rank_that_ends_is_one_account_and_the_run_goes_on_as_if_it_had_not(
    tmp_path, monkeypatch, on_rank, reference, fate
):
    on_rank(1, Loop, "_step", 6, MEANS[fate])  # step 4 was saved, step 5 was not
    patience = ["--timeout", "3"] if fate == "stop" else []
    if fate == "stop":
        monkeypatch.setattr(launch, "_GRACE_SECONDS", 1.0)
    with nothing_stays():
        process = Command(tmp_path, *small_run(tmp_path), *OPTIONS, *patience)
        _, error = ended(process)
    assert process.returncode == 1
    assert error.startswith("error: ")
    last = error.splitlines()[-1]
    assert ACCOUNTS[fate] in last
    assert last.endswith("; the other ranks were stopped")
    assert error.count("Traceback") == (fate in ("fail", "memory"))
    if fate == "memory":
        assert "memory" in last
    run = tmp_path / "runs/run"
    newest = newest_checkpoint(run / "checkpoints", contents=True)
    assert newest is not None
    assert newest.name == "step-00000004"
    assert list(steps_of(run)) == [1, 2, 3, 4, 5]
    monkeypatch.undo()
    assert main(["train", "--resume", str(run)]) == 0
    assert steps_of(run) == reference
    assert not list((run / "checkpoints").glob(".*"))


def interrupt_everyone(launcher: int, signum: int) -> None:
    """As a terminal does with Ctrl-C: the launcher and all ranks get it."""
    for pid in (launcher, *children(launcher)):
        os.kill(pid, signum)


LAUNCHER = -1
MOMENTS = {
    "corpus": (LAUNCHER, prepare, "build_corpus", 1),
    "ranks": (LAUNCHER, launch, "_serve", 1),
    "connection": (1, session, "connect", 1),
    "plan": (0, session, "fully_shard", 1),
    "step": (2, Loop, "_step", 2),
    "evaluation": (0, Evaluation, "run", 1),
    "save": (1, session, "save_checkpoint", 1),
    "sample": (0, rank_module, "generate", 1),
    "plot": (0, rank_module, "write_plot", 1),
    "end": (2, session.ShardedSession, "close", 1),
}


@pytest.mark.parametrize("twice", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("moment", some(MOMENTS, ("corpus", "connection", "save")))
def test_ctrl_c_at_any_moment_ends_the_run_in_order(tmp_path, on_rank, moment, twice):
    rank, *place = MOMENTS[moment]

    def interrupt():
        # Two of one kind may arrive as one.
        for signum in (signal.SIGINT, signal.SIGTERM)[: 1 + twice]:
            interrupt_everyone(os.getpid() if rank == LAUNCHER else os.getppid(), signum)

    on_rank(rank, *place, interrupt)
    with nothing_stays():
        process = Command(tmp_path, *small_run(tmp_path), *OPTIONS)
        _, error = ended(process)
    late = moment in ("sample", "plot", "end")  # when there is nothing left to leave out
    assert process.returncode in ((130, 143) if twice else (0 if late else 130,))
    assert error == ""
    run = tmp_path / "runs/run"
    newest = newest_checkpoint(run / "checkpoints", contents=True)
    if moment == "corpus":
        assert not run.exists()  # the name is free again
    elif not twice:
        assert newest is not None
        assert newest.name == f"step-{max(steps_of(run)):08d}"
    if newest is not None:
        assert newest.parent == run / "checkpoints"


def test_a_disk_that_is_full_at_a_checkpoint_ends_the_run_and_keeps_the_last_one(
    tmp_path, monkeypatch, on_rank, reference
):
    def fill_the_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    on_rank(1, session, "save_checkpoint", 2, fill_the_disk)
    process = Command(tmp_path, *small_run(tmp_path), *OPTIONS)
    _, error = ended(process)
    assert process.returncode == 1
    assert error.count("Traceback") <= 2  # of one rank, and of what caused it
    assert "failed: CheckpointError: rank 1: " in error.splitlines()[-1]
    assert "File too large" in error.splitlines()[-1]
    run = tmp_path / "runs/run"
    assert os.listdir(run / "checkpoints") == ["step-00000002"]
    monkeypatch.undo()
    assert main(["train", "--resume", str(run)]) == 0
    assert steps_of(run) == reference


@pytest.mark.parametrize("runs", ["text.py", "/proc/none", "/dev/full"])
def test_a_place_where_nothing_can_be_written_is_bad_input_before_any_rank_starts(tmp_path, runs):
    options = [*small_run(tmp_path), "--runs", tmp_path / runs, "--name", "a/b"]
    process = Command(tmp_path, *options)
    _, error = ended(process)
    assert process.returncode == 2
    assert error.startswith("error: expected a place for the run, got ")
    assert error.count("\n") == 1


NOT_PERMITTED = 77


def train_on_a_small_disk(runs: Path, options: list[str]) -> int:
    """Exit status of a run, if it leaves nothing behind."""
    try:
        small_disk(runs, "64k")
    except NotPermittedError:
        return NOT_PERMITTED
    try:
        status = main(options)
        return -1 if os.listdir(runs) else status
    except BaseException:
        traceback.print_exc()
        return 99


def test_a_disk_that_is_full_while_tokens_are_written_is_bad_input_and_leaves_nothing(tmp_path):
    """Writing through a mapping would be a SIGBUS."""
    options = small_run(tmp_path)
    (tmp_path / "runs").mkdir()
    pid = os.fork()
    if pid == 0:
        os._exit(train_on_a_small_disk(tmp_path / "runs", options))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == NOT_PERMITTED:
        pytest.skip("no file systems of their own for processes here")
    assert status == 2
