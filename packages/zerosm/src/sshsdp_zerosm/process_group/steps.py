"""Operations that are messages, and what comes before each phase."""

import torch

from sshsdp_zerosm.counters import Counters
from sshsdp_zerosm.process_group.frame import FrameKind
from sshsdp_zerosm.process_group.network import Network
from sshsdp_zerosm.steps import Step


class RunStep(Step):
    """Say that a phase starts."""

    __slots__ = ("_mark", "_network")

    def __init__(self, network: Network, mark: int) -> None:
        self._network = network
        self._mark = mark

    def run(self, accumulate: bool) -> None:
        """Count it."""
        del accumulate
        self._network.enter(self._mark)


class SendStep(Step):
    """Put to a rank whose memory can't be addressed."""

    __slots__ = ("_arena", "_offset", "_sender", "_source")

    def __init__(
        self, network: Network, source: torch.Tensor, peer: int, arena: int, offset: int
    ) -> None:
        self._sender = network.sender(peer)
        self._source = source
        self._arena = arena
        self._offset = offset

    def run(self, accumulate: bool) -> None:
        """Send the bytes; the source must stay as it is until a Fence."""
        del accumulate
        self._sender.send(FrameKind.PUT, self._arena, self._offset, payload=self._source)

    def tally(self, counters: Counters) -> None:
        """Add the bytes."""
        counters.put_bytes += self._source.nbytes
        counters.between_bytes += self._source.nbytes


class SentStep(Step):
    """Fence."""

    __slots__ = ("_network", "_peers", "_start", "_stop")

    def __init__(self, network: Network, source: torch.Tensor, peers: frozenset[int]) -> None:
        self._network = network
        self._peers = peers
        self._start = source.data_ptr()
        self._stop = self._start + source.nbytes

    def run(self, accumulate: bool) -> None:
        """Wait until the source was sent."""
        del accumulate
        for peer in self._peers:
            self._network.sender(peer).fence(self._start, self._stop)
