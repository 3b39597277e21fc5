"""One side of a comparison: started as fresh processes, timed by itself, watched from outside."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from testing.bench_memory import PeakMemory

ROOT = Path(__file__).resolve().parent.parent


class ProgramError(RuntimeError):
    """A program crashed or did not finish; the text holds the end of every failed rank's output."""


@dataclass(frozen=True)
class Program:
    """One side of a comparison under one workload.

    Attributes:
        side: who runs, e.g. "fsdp2".
        workload: what is run, e.g. "64tok/2ranks"; sides of one workload are compared.
        function: name of a function of the benchmark module. Every rank calls it as
            ``function(Rank, **arguments)`` in a fresh interpreter; it returns lists of numbers
            by name (seconds per step, losses, ...).
        ranks: number of processes, each with one thread.
        arguments: handed to the function; JSON values only.
        rounds: how often the program is run.
        watch_memory: sample every rank's memory from outside. Such runs are not for timing:
            sampling takes a part of a core.
        timeout: seconds until a run is killed and reported.
    """

    side: str
    workload: str
    function: str
    ranks: int = 1
    arguments: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 3
    watch_memory: bool = False
    timeout: float = 300.0


@dataclass(frozen=True)
class Run:
    """What one run of a program gave.

    Attributes:
        ranks: per rank what its function returned.
        peak_memory: per rank the peak of its proportional set size in bytes; empty if not watched.
    """

    ranks: tuple[Mapping[str, Sequence[float]], ...]
    peak_memory: tuple[int, ...] = ()


def run_program(file: Path, program: Program) -> Run:
    """Run a program of the benchmark in `file` once, each rank in a fresh interpreter.

    Ranks are executed, not forked: no side inherits pages that another side would have to pay for.

    Raises:
        ProgramError: when a rank fails or the timeout passes; all ranks are dead then.
    """
    server = TCPStore(
        "127.0.0.1", 0, None, True, timedelta(seconds=program.timeout), wait_for_workers=False
    )
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        outputs = [Path(folder, f"rank{rank}") for rank in range(program.ranks)]
        with _started(file, program, server.port, outputs) as processes:
            memory = PeakMemory([process.pid for process in processes])
            with memory.watched() if program.watch_memory else contextlib.nullcontext():
                _wait(program, processes, outputs)
        return Run(
            tuple(json.loads(output.with_suffix(".json").read_text()) for output in outputs),
            memory.peaks if program.watch_memory else (),
        )


@contextlib.contextmanager
def _started(
    file: Path, program: Program, port: int, outputs: Sequence[Path]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, output in enumerate(outputs):
            order = {
                "file": str(file),
                "function": program.function,
                "arguments": dict(program.arguments),
                "rank": rank,
                "world": program.ranks,
                "port": port,
                "timeout": program.timeout,
                "answer": str(output.with_suffix(".json")),
            }
            with output.with_suffix(".log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "testing.bench_rank", json.dumps(order)],
                        cwd=ROOT,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        # All ranks share the group of the first: one signal ends them all.
                        process_group=processes[0].pid if processes else 0,
                    )
                )
        yield processes
    finally:
        if processes:
            # Also reaches what a rank started and left behind.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(processes[0].pid, signal.SIGKILL)
        for process in processes:
            process.wait()


def _wait(
    program: Program, processes: Sequence[subprocess.Popen[bytes]], outputs: Sequence[Path]
) -> None:
    name = f"{program.side} ({program.workload})"
    deadline = time.monotonic() + program.timeout
    pause = threading.Event()
    while None in (codes := [process.poll() for process in processes]):
        if any(codes):
            # The others get a moment to fail as well: the cause may be theirs.
            pause.wait(1.0)
            break
        if time.monotonic() > deadline:
            logs = "\n".join(_tail(rank, output) for rank, output in enumerate(outputs))
            raise ProgramError(f"{name} did not finish within {program.timeout:.0f} s\n{logs}")
        pause.wait(0.05)
    failed = [rank for rank, process in enumerate(processes) if process.poll()]
    if failed:
        logs = "\n".join(_tail(rank, outputs[rank]) for rank in failed)
        raise ProgramError(f"{name} crashed on rank {', '.join(map(str, failed))}\n{logs}")


def _tail(rank: int, output: Path, lines: int = 30) -> str:
    log = output.with_suffix(".log").read_text(errors="replace").splitlines()
    return "\n".join(f"  rank {rank} | {line}" for line in log[-lines:])
