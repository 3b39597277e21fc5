"""What a run must not leave behind: processes, sockets, named shared memory."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE = 20.0  # seconds


@contextlib.contextmanager
def nothing_stays() -> Iterator[None]:
    """AssertionError if there is more of ours on the machine afterwards than before.

    Other runs may come and go meanwhile: what is there afterwards has to disappear.
    """
    before = _ours()
    yield
    left = _ours() - before
    deadline = time.monotonic() + PATIENCE
    while left and time.monotonic() < deadline:
        left &= _ours()
        time.sleep(0.02)
    assert not left, left


def children(pid: int) -> set[int]:
    """Process ids of the children of a process, those of all its threads."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):
            found |= {int(child) for child in task.read_text().split()}
    return found


def _ours() -> set[str]:
    sockets = Path("/proc/net/unix").read_text().split()
    memory = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
    names = {name for name in memory | set(sockets) if "sshsdp" in name}
    return names | {f"child process {pid}" for pid in children(os.getpid())}
