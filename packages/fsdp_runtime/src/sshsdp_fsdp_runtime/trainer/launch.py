"""Launch: forks the ranks of a run, relays signals to them and collects how they ended."""

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType

import torch
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    Store,
    TCPStore,
)

from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.outcome import Outcome
from sshsdp_fsdp_runtime.trainer.seat import Seat
from sshsdp_fsdp_runtime.trainer.stop import SIGNALS, PipeStop, exit_status
from sshsdp_zerosm import TransportError

Work = Callable[[Seat], Outcome]

_STORE_TIMEOUT = timedelta(minutes=5)
_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.2
_AT_ONCE = b"interrupted again: ended at once; steps after the last checkpoint are lost\n"
_PR_SET_PDEATHSIG = 1


class RanksError(RuntimeError):
    """A rank raised or died; the others were stopped. The text names the rank that began it."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a rank has no outcome.

    Attributes:
        reason: one line.
        account: the traceback, when there is one.
        is_input: the user can mend it.
        is_echo: the rank only noticed that another one was gone.
        is_silent: the rank said nothing, and was stopped at last; the one at fault if all others
            only noticed something.
    """

    reason: str
    account: str = ""
    is_input: bool = False
    is_echo: bool = False
    is_silent: bool = False


@dataclass(frozen=True, slots=True)
class _Child:
    rank: int
    process: BaseProcess
    pipe: Connection


def run_forked(work: Work, world: int) -> Outcome:
    """Run `work` in `world` forked processes; the outcome of rank 0.

    The caller must not have run any tensor operation: a child would inherit the locks of threads
    that it does not have. SIGINT, SIGTERM and SIGHUP are passed on to the ranks, which finish their
    step; a second one kills them and ends this process at once.

    Args:
        work: called with the rank's seat, in its own process.
        world: number of processes.

    Raises:
        InputError: what a rank found wrong with the user's input; or too few processes, or no
            store, for what the system permits.
        RanksError: when a rank raised anything else or died.
    """
    children: list[_Child] = []
    with _killed_at_exit(children), _relayed_signals(children) as relay:
        _fork(work, world, children)
        server = _serve(children) if world > 1 else None
        relay.begin()
        answers = _collect(children)
        del server
        failures = {rank: each for rank, each in answers.items() if isinstance(each, _Failure)}
        if failures:
            raise _error(failures, world)
    outcome = answers[0]
    assert isinstance(outcome, Outcome)
    return outcome


def _fork(work: Work, world: int, children: list[_Child]) -> None:
    sys.stdout.flush()
    # A rank begins with its signals blocked, until it has handlers of its own.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        for rank in range(world):
            children.append(_fork_rank(work, rank, world, children))
    except OSError as error:
        raise InputError(
            f"expected a process for each of {world} ranks, got {len(children)}: {error}; ask for"
            f" fewer --ranks, or raise what limits them (ulimit -u, ulimit -n, memory)"
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _fork_rank(work: Work, rank: int, world: int, before: list[_Child]) -> _Child:
    context = get_context("fork")
    ours, theirs = context.Pipe()
    inherited = [child.pipe for child in before] + [ours]
    with contextlib.closing(theirs):
        process = context.Process(
            target=_rank_main,
            args=(work, rank, world, theirs, inherited, os.getpid()),
            name=f"rank {rank}",
        )
        with warnings.catch_warnings():
            # Python counts all threads; the ones of numpy's BLAS are prepared for a fork.
            warnings.filterwarnings("ignore", "This process .* multi-threaded", DeprecationWarning)
            process.start()
    return _Child(rank, process, ours)


def _rank_main(
    work: Work,
    rank: int,
    world: int,
    pipe: Connection,
    inherited: list[Connection],
    parent: int,
) -> None:
    stop = PipeStop(pipe)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    _die_with(parent)
    # A copy of the launcher's end would keep this pipe open after the launcher is gone.
    for each in inherited:
        each.close()
    torch.set_num_threads(1)
    try:
        pipe.send(work(Seat(rank, world, _store(pipe, world), stop)))
    except Exception as error:
        is_echo = isinstance(error, TransportError)
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        failure = _Failure(reason, traceback.format_exc(), isinstance(error, InputError), is_echo)
        with contextlib.suppress(BrokenPipeError):
            pipe.send(failure)
    finally:
        pipe.close()


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when the launcher dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _store(pipe: Connection, world: int) -> Store | None:
    if world == 1:
        return None
    client = TCPStore("127.0.0.1", pipe.recv(), None, False, _STORE_TIMEOUT)
    return PrefixStore("ranks", client)


def _serve(children: list[_Child]) -> Store:
    # After the last fork: the server's thread must not hold a lock while a child is copied.
    try:
        server = TCPStore("127.0.0.1", 0, None, True, _STORE_TIMEOUT, False)
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"expected a store on 127.0.0.1 where the ranks meet, got {error}; raise what limits"
            f" threads and open files (ulimit -u, ulimit -n)"
        ) from error
    for child in children:
        with contextlib.suppress(BrokenPipeError):
            child.pipe.send(server.port)
    return server


def _collect(children: list[_Child]) -> dict[int, Outcome | _Failure]:
    """Every rank's answer; after the first failure the others have a moment to give theirs."""
    answers: dict[int, Outcome | _Failure] = {}
    waiting = {child.pipe: child for child in children}
    deadline = float("inf")
    first = ""
    while waiting and time.monotonic() < deadline:
        for pipe in wait(list(waiting), timeout=_POLL_SECONDS):
            assert isinstance(pipe, Connection)
            child = waiting.pop(pipe)
            answers[child.rank] = _answer(child)
            answer = answers[child.rank]
            if isinstance(answer, _Failure):
                first = first or f"rank {child.rank}: {answer.reason}"
                deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
    for child in waiting.values():
        reason = f"it gave no answer for {_GRACE_SECONDS:g} s after {first}"
        answers[child.rank] = _Failure(reason, is_silent=True)
    return answers


def _answer(child: _Child) -> Outcome | _Failure:
    try:
        answer: Outcome | _Failure = child.pipe.recv()
    except (EOFError, ConnectionResetError):
        child.process.join()
        return _Failure(_death(child.process.exitcode or 0))
    return answer


def _death(code: int) -> str:
    if code >= 0:
        return f"it exited with status {code} and without a result"
    name = signal.Signals(-code).name
    hint = " (often: out of memory)" if -code == signal.SIGKILL else ""
    return f"it was killed by {name}{hint}"


def _error(failures: dict[int, _Failure], world: int) -> Exception:
    rank = min(failures, key=lambda at: (failures[at].is_echo, failures[at].is_silent, at))
    cause = failures[rank]
    if cause.is_input:
        return InputError(cause.reason)
    others = "" if world == 1 else "; the other ranks were stopped"
    account = f"{cause.account}\n" if cause.account else ""
    return RanksError(f"{account}rank {rank} of {world} failed: {cause.reason}{others}")


class _Relay:
    """Passes the first signal on to the ranks once they listen; a second one ends everything."""

    def __init__(self, children: list[_Child]) -> None:
        self._children = children
        self._signum = 0
        self._begun = False

    def begin(self) -> None:
        """The ranks exist and know the store, the first message of their pipes: pass signals on."""
        self._begun = True
        if self._signum:
            self._pass_on()

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """A signal handler."""
        del frame
        if self._signum:
            _kill(self._children)
            with contextlib.suppress(OSError):  # not by print, which this may have interrupted
                os.write(sys.stdout.fileno(), _AT_ONCE)
            os._exit(exit_status(signum))
        self._signum = signum
        if self._begun:
            self._pass_on()

    def _pass_on(self) -> None:
        for child in self._children:
            with contextlib.suppress(OSError):
                child.pipe.send(self._signum)


@contextlib.contextmanager
def _relayed_signals(children: list[_Child]) -> Iterator[_Relay]:
    # From before the first fork: a mask alone would not do, since the kernel gives a signal to any
    # thread that has none, such as one of torch's, and the default action ends the process.
    relay = _Relay(children)
    before = {signum: signal.signal(signum, relay.handle) for signum in SIGNALS}
    try:
        yield relay
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def _killed_at_exit(children: list[_Child]) -> Iterator[None]:
    try:
        yield
        for child in children:
            child.process.join(_GRACE_SECONDS)
    finally:
        _kill(children)
        for child in children:
            child.process.join()
            child.pipe.close()


def _kill(children: list[_Child]) -> None:
    for child in children:
        pid = child.process.pid
        if child.process.exitcode is None and pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
