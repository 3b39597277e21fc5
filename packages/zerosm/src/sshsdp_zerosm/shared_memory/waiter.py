"""Waiting for another process: spin a little, yield a little, then sleep."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from sshsdp_zerosm.board import SLEEPING, Board
from sshsdp_zerosm.errors import TransportError, WaitTimeoutError
from sshsdp_zerosm.shared_memory.futex import Futex
from sshsdp_zerosm.waiter import give_up, too_late

_SPINS = 200  # reads, about 10 us: covers a peer that is right behind
_YIELDS = 20
_SLICE = 0.02  # seconds between looks at the peers' health


class FutexWaiter:
    """Waits and wakes over the ranks' boards.

    Args:
        rank: this rank.
        boards: of all ranks.
        check: why a wait for a rank is hopeless, or None.
        timeout: seconds that one wait may take.
        neighbours: ranks on this host, this one included.
    """

    def __init__(
        self,
        rank: int,
        boards: Sequence[Board],
        check: Callable[[int], TransportError | None],
        timeout: float,
        neighbours: int,
    ) -> None:
        self.failure: TransportError | None = None
        self._rank = rank
        self._boards = boards
        self._own = boards[rank]
        self._check = check
        self._timeout = timeout
        self._futex = Futex()
        self._fence = threading.Lock()
        # With more ranks than cores a spinning rank keeps the one it waits for from running.
        crowded = neighbours > len(os.sched_getaffinity(0))
        self._spins, self._yields = (0, 0) if crowded else (_SPINS, _YIELDS)

    def wait(self, source: int, word: int, need: int, channel: str) -> None:
        """See Waiter.wait."""
        words = self._boards[source].words
        for _ in range(self._spins):
            if words[word] >= need:
                return
        for _ in range(self._yields):
            os.sched_yield()
            if words[word] >= need:
                return
        self._own.show_wait(source, channel)
        self._own.words[SLEEPING] = 1
        try:
            self._sleep(source, word, need, channel)
        finally:
            self._own.words[SLEEPING] = 0
            self._own.show_wait(None)

    def wake(self, word: int, to: Iterable[int]) -> None:
        """See Waiter.wake."""
        # The raised word must be visible before SLEEPING is read, or both sides could miss each
        # other (the sleeper's half is done by the kernel). Taking a lock is a full fence.
        with self._fence:
            pass
        for peer in to:
            if self._boards[peer].words[SLEEPING]:
                self._futex.wake(self._own.address + 8 * word)
                return

    def _sleep(self, source: int, word: int, need: int, channel: str) -> None:
        board = self._boards[source]
        deadline = time.monotonic() + self._timeout
        while (seen := board.words[word]) < need:
            error = self._check(source)
            if error is None and time.monotonic() >= deadline:
                error = too_late(
                    self._boards, self._rank, source, channel, (need, seen), self._timeout
                )
            if error is not None:
                # It may have signalled after `seen` was read and before it ended.
                if board.words[word] >= need:
                    return
                self.failure = error
                if isinstance(error, WaitTimeoutError):
                    give_up(self._own, error)
                raise error
            # The low half of the word, which comes first on little-endian machines.
            self._futex.wait(board.address + 8 * word, seen, _SLICE)
