"""Ranks that fail take the others down with one account; none outlives the launcher."""

import contextlib
import errno
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from sshsdp_fsdp_runtime.trainer import launch
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.launch import RanksError, run_forked
from sshsdp_fsdp_runtime.trainer.outcome import Outcome
from sshsdp_fsdp_runtime.trainer.stop import SIGNALS
from sshsdp_zerosm import PeerDiedError


def outcome(steps):
    return Outcome(steps=steps, val_loss=0.0, tokens_per_s=0.0, peak_pss_bytes=0, run=Path())


def until_told(seat):
    """Work of a rank that only ends when a signal is passed on."""
    while not seat.stop.requested():
        time.sleep(0.01)
    return outcome(seat.stop.requested())


def alive(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


@pytest.mark.parametrize("world", [1, 3])
def test_rank_zero_has_the_outcome_and_all_meet_in_the_store(world):
    def work(seat):
        if seat.store is not None:
            seat.store.add("seen", 1)
            while seat.store.add("seen", 0) < seat.world:
                time.sleep(0.01)
        return outcome(100 * seat.rank + seat.world)

    assert run_forked(work, world).steps == world


def test_a_dead_rank_is_named_and_the_others_end(tmp_path, monkeypatch):
    monkeypatch.setattr("sshsdp_fsdp_runtime.trainer.launch._GRACE_SECONDS", 0.5)

    def work(seat):
        (tmp_path / str(seat.rank)).write_text(str(os.getpid()))
        if seat.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return until_told(seat)

    with pytest.raises(RanksError, match=r"rank 1 of 3 failed: it was killed by SIGKILL .*memory"):
        run_forked(work, 3)
    assert not any(alive(int(path.read_text())) for path in tmp_path.iterdir())


def test_the_rank_that_raised_is_named_with_its_traceback():
    def work(seat):
        if seat.rank == 1:
            raise ZeroDivisionError("of seven")
        return outcome(0)

    with pytest.raises(RanksError, match=r"(?s)Traceback.*rank 1 of 2 failed: ZeroDivisionError"):
        run_forked(work, 2)


def test_the_rank_that_only_noticed_is_not_the_one_named():
    def work(seat):
        raise ZeroDivisionError("of seven") if seat.rank == 1 else PeerDiedError("rank 1 is gone")

    with pytest.raises(RanksError, match="rank 1 of 2 failed: ZeroDivisionError: of seven"):
        run_forked(work, 2)


def test_bad_input_that_only_ranks_notice_stays_bad_input():
    def work(seat):
        raise InputError("expected a checkpoint of this model")

    with pytest.raises(InputError, match="expected a checkpoint of this model"):
        run_forked(work, 2)


def test_an_exit_without_a_result_is_a_failure():
    def leave(seat):
        os._exit(7)

    with pytest.raises(RanksError, match="exited with status 7 and without a result"):
        run_forked(leave, 1)


def test_a_rank_that_can_not_be_forked_is_bad_input_and_the_ones_before_it_end(monkeypatch):
    fork, ranks = os.fork, []

    def fork_one_only():
        if ranks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        ranks.append(fork())
        return ranks[0]

    monkeypatch.setattr(os, "fork", fork_one_only)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    handlers = [signal.getsignal(signum) for signum in SIGNALS]
    with pytest.raises(InputError, match=r"^expected a process for each of 3 ranks, got 1: "):
        run_forked(until_told, 3)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    assert [signal.getsignal(signum) for signum in SIGNALS] == handlers
    assert not alive(ranks[0])


def test_a_store_that_can_not_be_served_is_bad_input_and_the_ranks_end(monkeypatch):
    fork, ranks = os.fork, []

    def fork_and_note():
        ranks.append(fork())
        return ranks[-1]

    def no_threads(*args):
        raise RuntimeError(os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork_and_note)
    monkeypatch.setattr(launch, "TCPStore", no_threads)
    with pytest.raises(InputError, match=r"^expected a store on 127\.0\.0\.1 .*unavailable; "):
        run_forked(until_told, 2)
    assert len(ranks) == 2
    assert not any(map(alive, ranks))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_to_the_ranks(signum):
    parent = os.getpid()

    def work(seat):
        if seat.rank == 0:
            os.kill(parent, signum)
        return until_told(seat)

    before = signal.getsignal(signum)
    assert run_forked(work, 2).steps == signum
    assert signal.getsignal(signum) is before


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_all_ranks_listen_reaches_them_whatever_thread_takes_it(
    signum, monkeypatch
):
    def fork_and_signal(work, world, children):
        fork(work, world, children)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signum])
        os.kill(os.getpid(), signum)  # the idle thread has no mask
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signum])

    fork = launch._fork
    monkeypatch.setattr(launch, "_fork", fork_and_signal)
    done = threading.Event()
    launcher = os.fork()
    if launcher == 0:
        threading.Thread(target=done.wait, daemon=True).start()
        os._exit(run_forked(until_told, 2).steps)
    _, status = os.waitpid(launcher, 0)
    assert os.waitstatus_to_exitcode(status) == signum


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
def test_ranks_die_with_their_launcher(tmp_path):
    def work(seat):
        (tmp_path / str(seat.rank)).write_text(str(os.getpid()))
        time.sleep(60)
        return outcome(0)

    launcher = os.fork()
    if launcher == 0:
        run_forked(work, 2)
        os._exit(0)
    deadline = time.monotonic() + 30
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)  # until both have written
    ranks = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert len(ranks) == 2
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    while any(map(alive, ranks)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(alive, ranks))
