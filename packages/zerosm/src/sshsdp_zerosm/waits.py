"""How long a rank has waited, for whom and in which exchange."""

import time
from collections.abc import Iterable

from sshsdp_zerosm.errors import TransportError
from sshsdp_zerosm.waiter import Waiter


class Waits:
    """Nanoseconds in which a rank waited for counts of others that were not there yet.

    A wait that finds its count costs nothing here. Sends that fill up, and copies and sums while
    they run, are no waits.

    Attributes:
        nanoseconds: by channel and by the rank that was waited for; they only grow. Channels are
            those of schedules, and ``generation``, ``barrier`` and ``exchange``.
        total: sum of these.
    """

    def __init__(self) -> None:
        self.nanoseconds: dict[tuple[str, int], int] = {}
        self.total = 0

    def add(self, channel: str, source: int, nanoseconds: int) -> None:
        """Count a wait of this rank for `source`."""
        key = channel, source
        self.nanoseconds[key] = self.nanoseconds.get(key, 0) + nanoseconds
        self.total += nanoseconds


class TimedWaiter:
    """A waiter whose waits are counted.

    Args:
        waiter: waits and wakes.
        waits: where waits are counted.
    """

    def __init__(self, waiter: Waiter, waits: Waits) -> None:
        self._waiter = waiter
        self._waits = waits

    @property
    def failure(self) -> TransportError | None:
        """That of the waiter."""
        return self._waiter.failure

    @failure.setter
    def failure(self, error: TransportError | None) -> None:
        self._waiter.failure = error

    def wait(self, source: int, word: int, need: int, channel: str) -> None:
        """See Waiter.wait."""
        began = time.perf_counter_ns()
        try:
            self._waiter.wait(source, word, need, channel)
        finally:
            self._waits.add(channel, source, time.perf_counter_ns() - began)

    def wake(self, word: int, to: Iterable[int]) -> None:
        """See Waiter.wake."""
        self._waiter.wake(word, to)
