"""What a run must not leave behind: processes, and what they hold; named shared memory."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE = 20.0  # seconds


@contextlib.contextmanager
def nothing_stays() -> Iterator[None]:
    """AssertionError if there is more of ours on the machine afterwards than before.

    Others may start processes meanwhile: what is there afterwards has to disappear.
    """
    before = _ours()
    yield
    left = _ours() - before
    deadline = time.monotonic() + PATIENCE
    while left and time.monotonic() < deadline:
        left &= _ours()
        time.sleep(0.05)
    assert not left, left


def children(pid: int) -> set[int]:
    """Process ids of the children of a process, those of all its threads."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):
            found |= {int(child) for child in task.read_text().split()}
    return found


def _ours() -> set[str]:
    # Sockets have abstract names and memory has none: they end with the processes.
    memory = {name for name in os.listdir("/dev/shm") if "sshsdp" in name}
    return memory | {f"process {pid}" for pid in _group(os.getpgrp())}


def _group(group: int) -> set[int]:
    """Process ids of a process group, in which also orphans stay."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, found_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(found_group) == group and state != "Z":
                found.add(int(path.parent.name))
    return found
