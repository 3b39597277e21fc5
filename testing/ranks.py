"""Starts ranks: forked processes that run one function and hand back what it returned."""

import contextlib
import gc
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]


class RankError(AssertionError):
    """One or more ranks raised, died or did not finish; the text holds every rank's account."""


@dataclass(frozen=True)
class Rank:
    """What a rank's function gets first: who it is and the store that all ranks share."""

    rank: int
    world: int
    store: Store


def run_ranks(
    function: Callable[..., Any],
    world: int,
    *args: Any,
    timeout: float = 120.0,
    expect_death: tuple[int, ...] = (),
) -> list[Any]:
    """Run ``function(Rank, *args)`` in `world` forked processes.

    Args:
        function: called in each process; its return value must be picklable.
        world: number of ranks.
        *args: handed to the function unchanged (inherited by fork, never pickled).
        timeout: seconds until the ranks that still run are killed and reported.
        expect_death: ranks that may die without an answer; their result is None.

    Returns:
        The ranks' return values in rank order.

    Raises:
        RankError: with the traceback of every rank that failed.
    """
    context = get_context("fork")
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    with _terminated_at_exit(processes):
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_rank_main, args=(theirs, function, rank, world, timeout, args)
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        # The server's thread starts after the last fork: a child must not inherit its locks.
        server = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=timeout), False)
        for pipe in pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.send(server.port)
        answers = _collect(pipes, time.monotonic() + timeout)
        # Its thread ends here: a traceback that keeps this frame must not keep it for later forks.
        del server
    failures = [
        f"rank {rank}: {answer.text}"
        for rank, answer in enumerate(answers)
        if isinstance(answer, _Failure) and not (answer.died and rank in expect_death)
    ]
    if failures:
        raise RankError("\n".join(failures))
    return [None if isinstance(answer, _Failure) else answer for answer in answers]


@dataclass(frozen=True)
class _Failure:
    text: str
    died: bool = False


def _rank_main(
    parent: Connection,
    function: Callable[..., Any],
    rank: int,
    world: int,
    timeout: float,
    args: tuple[Any, ...],
) -> None:
    # A full collection would write to, and so copy, every page that holds objects of the parent.
    gc.freeze()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    try:
        client = TCPStore("127.0.0.1", parent.recv(), None, False, timedelta(seconds=timeout))
        answer = function(Rank(rank, world, PrefixStore("ranks", client)), *args)
        # Plain pickle: torch's own would hand tensors over as memory of this process, which ends.
        parent.send_bytes(pickle.dumps(answer))
    except BaseException:
        parent.send_bytes(pickle.dumps(_Failure(traceback.format_exc())))
    finally:
        parent.close()


def _collect(pipes: list[Connection], deadline: float) -> list[Any]:
    answers: list[Any] = [_Failure("did not finish within the timeout")] * len(pipes)
    open_pipes = {pipe: rank for rank, pipe in enumerate(pipes)}
    while open_pipes and (left := deadline - time.monotonic()) > 0:
        for pipe in wait(list(open_pipes), timeout=left):
            assert isinstance(pipe, Connection)
            rank = open_pipes.pop(pipe)
            try:
                answers[rank] = pickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                answers[rank] = _Failure("died without an answer", died=True)
    return answers


@contextlib.contextmanager
def _terminated_at_exit(processes: list[BaseProcess]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.join(timeout=5)
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
                process.join()
