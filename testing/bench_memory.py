"""Memory of processes, seen from outside: peaks of their proportional set size."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path


class PeakMemory:
    """Watches the proportional set size (PSS) of some processes.

    PSS counts a page that k processes map as 1/k of a page for each. So the sum over ranks counts
    every page once, also those of mappings that the ranks share.
    """

    def __init__(self, pids: Sequence[int], interval: float = 0.02) -> None:
        self._files = [Path(f"/proc/{pid}/smaps_rollup") for pid in pids]
        self._peaks = [0] * len(pids)
        self._interval = interval
        self._stop = threading.Event()

    @property
    def peaks(self) -> tuple[int, ...]:
        """The peak of each process so far, in bytes."""
        return tuple(self._peaks)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Sample in a thread until the block ends."""
        thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(self._interval):
            for index, file in enumerate(self._files):
                self._peaks[index] = max(self._peaks[index], pss(file))


def pss(file: Path = Path("/proc/self/smaps_rollup")) -> int:
    """Proportional set size in bytes from a process's ``smaps_rollup``; 0 once it has ended."""
    try:
        text = file.read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
