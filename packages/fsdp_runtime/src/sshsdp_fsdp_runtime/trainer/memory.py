"""Memory: what the process holds, and the peak of what it held."""

import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/smaps_rollup")
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of physical memory of one process.

    Attributes:
        rss: resident set size.
        pss: proportional set size: a page that n processes map counts 1/n in each, so the sum over
            ranks counts shared memory once.
    """

    rss: int
    pss: int


def read_memory() -> Memory:
    """Memory of this process now; without /proc its peak RSS stands for both."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        nbytes = peak if sys.platform == "darwin" else peak * _KIB
        return Memory(nbytes, nbytes)
    values = {
        name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines[1:])
    }
    return Memory(int(values["Rss"]) * _KIB, int(values["Pss"]) * _KIB)


class MemoryWatch:
    """Samples the memory and remembers the peak of PSS.

    Args:
        interval: least seconds between two samples: the kernel walks all pages for one.
    """

    def __init__(self, interval: float = 0.5) -> None:
        self.latest = read_memory()
        self.peak_pss = self.latest.pss
        self._interval, self._next = interval, 0.0

    def sample(self) -> None:
        """Take a sample, unless the last one is too recent."""
        if time.monotonic() < self._next:
            return
        self.latest = read_memory()
        self.peak_pss = max(self.peak_pss, self.latest.pss)
        self._next = time.monotonic() + self._interval
