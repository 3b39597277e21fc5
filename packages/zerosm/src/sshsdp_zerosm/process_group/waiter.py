"""Waiting for ranks that send messages."""

import time
from collections.abc import Callable, Iterable, Sequence

from sshsdp_zerosm.board import Board
from sshsdp_zerosm.errors import TransportError
from sshsdp_zerosm.process_group.network import Network
from sshsdp_zerosm.waiter import too_late

_SLICE = 0.02  # seconds between looks at the others' health; a message wakes at once


class NetworkWaiter:
    """Waits and wakes over messages.

    Args:
        rank: this rank.
        boards: of all ranks.
        network: of this rank.
        check: why a wait for a rank is hopeless, or None.
        timeout: seconds that one wait may take.
    """

    def __init__(
        self,
        rank: int,
        boards: Sequence[Board],
        network: Network,
        check: Callable[[int], TransportError | None],
        timeout: float,
    ) -> None:
        self.failure: TransportError | None = None
        self._rank = rank
        self._boards = boards
        self._network = network
        self._check = check
        self._timeout = timeout

    def wait(self, source: int, word: int, need: int, channel: str) -> None:
        """See Waiter.wait."""
        own = self._boards[self._rank]
        own.show_wait(source, channel)
        try:
            self._wait(source, word, need, channel)
        finally:
            own.show_wait(None)

    def _wait(self, source: int, word: int, need: int, channel: str) -> None:
        words = self._boards[source].words
        deadline = time.monotonic() + self._timeout
        while (seen := words[word]) < need:
            error = self._check(source)
            if error is None and time.monotonic() >= deadline:
                error = too_late(
                    self._boards, self._rank, source, channel, (need, seen), self._timeout
                )
            if error is not None:
                if words[word] >= need:
                    return
                self.failure = error
                self._network.note(error)
                raise error
            with self._network.arrived:
                if words[word] < need:
                    self._network.arrived.wait(_SLICE)

    def wake(self, word: int, to: Iterable[int]) -> None:
        """See Waiter.wake."""
        self._network.announce(word, to)
