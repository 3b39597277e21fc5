"""Waiting for neighbours by memory, and for all others by messages."""

from collections.abc import Iterable

from sshsdp_zerosm.errors import TransportError
from sshsdp_zerosm.process_group import Network, NetworkWaiter
from sshsdp_zerosm.shared_memory.waiter import FutexWaiter


class CompositeWaiter:
    """Sends every call where it belongs.

    Args:
        near: waiter for the ranks of the own node.
        far: waiter for all others.
        network: of this rank.
        neighbours: the ranks of the own node.
    """

    def __init__(
        self,
        near: FutexWaiter,
        far: NetworkWaiter,
        network: Network,
        neighbours: Iterable[int],
    ) -> None:
        self._network = network
        self.failure: TransportError | None = None
        self._near = near
        self._far = far
        self._neighbours = frozenset(neighbours)
        self._split: dict[Iterable[int], tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def wait(self, source: int, word: int, need: int, channel: str) -> None:
        """See Waiter.wait."""
        waiter = self._near if source in self._neighbours else self._far
        try:
            waiter.wait(source, word, need, channel)
        except TransportError as error:
            self.failure = error
            self._network.note(error)
            raise

    def wake(self, word: int, to: Iterable[int]) -> None:
        """See Waiter.wake."""
        if to not in self._split:
            near = tuple(rank for rank in to if rank in self._neighbours)
            self._split[to] = near, tuple(rank for rank in to if rank not in self._neighbours)
        near, far = self._split[to]
        if near:
            self._near.wake(word, near)
        if far:
            self._far.wake(word, far)
