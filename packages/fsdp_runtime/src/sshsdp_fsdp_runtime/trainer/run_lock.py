"""Run lock: one process, and its ranks, write a run folder at a time."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from sshsdp_fsdp_runtime.trainer.errors import InputError


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the run folder `folder`.

    It is one of the kernel's on the folder itself: nothing is written, ranks forked meanwhile hold
    it too, and it ends with the last of them, however they end. Where the file system has no locks
    there is none.

    Raises:
        InputError: naming the process that holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            f"expected a run that nobody writes, got {folder}, which {_holder(descriptor)} is"
            " writing; wait for its end, or stop it"
        ) from error
    except OSError:
        return  # some network file systems
    if os.fstat(descriptor).st_nlink == 0:
        raise InputError(f"expected a run folder, got {folder}, which was just removed; try again")


def _holder(descriptor: int, table: Path = Path("/proc/locks")) -> str:
    inode = os.fstat(descriptor).st_ino
    with contextlib.suppress(OSError):
        for line in table.read_text().splitlines():
            # "1: FLOCK  ADVISORY  WRITE 4711 fe:01:1234 0 EOF"
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}") and int(fields[4]) > 0:
                return f"process {fields[4]}"
    return "another process"
