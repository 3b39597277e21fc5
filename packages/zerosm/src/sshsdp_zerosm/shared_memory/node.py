"""The ranks of one node, which map each other's memory."""

import contextlib
import mmap
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

from sshsdp_zerosm.arena import Memory, padded
from sshsdp_zerosm.board import BOARD_BYTES, Board
from sshsdp_zerosm.card import Card
from sshsdp_zerosm.distress import Distress
from sshsdp_zerosm.errors import PeerDiedError, TransportError
from sshsdp_zerosm.shared_memory.handover import Handover
from sshsdp_zerosm.shared_memory.memory import as_array
from sshsdp_zerosm.shared_memory.mesh import Mesh
from sshsdp_zerosm.shared_memory.peers import Peers
from sshsdp_zerosm.words import check_ordering, ordered_words


class Node:
    """Connected ranks of one host.

    Memory is anonymous (memfd), so nothing stays behind whatever happens to the processes.

    Args:
        rank: this rank.
        cards: of the node's ranks, this one included.
        listener: the socket of this rank's card.
        distress: what ranks that can't go on have said.
        timeout: seconds that a wait may take.

    Attributes:
        ranks: of the node, ascending.
        peers: the health of the others.

    Raises:
        TransportError: ranks that can't share memory, or that don't come.
    """

    def __init__(
        self,
        rank: int,
        cards: Mapping[int, Card],
        listener: socket.socket,
        distress: Distress,
        timeout: float,
    ) -> None:
        self.ranks = tuple(sorted(cards))
        with contextlib.ExitStack() as stack, distress.telling():
            pids = {peer: card.pid for peer, card in cards.items() if peer != rank}
            try:
                self.peers = Peers(rank, pids)
            except PeerDiedError as error:
                raise distress.hear() or error from None
            stack.callback(self.peers.close)
            self._mesh = Mesh(rank, cards, self.peers, distress, timeout)
            stack.callback(self._mesh.close)
            self._mesh.connect(listener)
            self._handover = Handover(rank, self.ranks, self._mesh)
            stack.pop_all()

    def share_boards(self) -> dict[int, Board]:
        """The control page of every rank."""
        mappings, errors = self._handover.run("sshsdp-board", BOARD_BYTES, self.ranks)
        if errors:
            raise TransportError(f"can't share the control pages: {'; '.join(errors)}")
        return {rank: _board(mapping) for rank, mapping in mappings.items()}

    def share_memory(
        self, name: str, nbytes: int, creators: Sequence[int]
    ) -> tuple[dict[int, Memory], list[str]]:
        """New memory of each creator, mapped, and what went wrong on this rank."""
        mappings, errors = self._handover.run(f"sshsdp-{name}", padded(nbytes), creators)
        return {rank: as_array(mapping) for rank, mapping in mappings.items()}, errors

    def tell_waits(self, notice: Callable[[int], None]) -> None:
        """Have `notice` told for whose memory this rank waits; this rank: for nobody's."""
        self._mesh.notice = notice

    def seal(self) -> None:
        """No memory will be handed over any more."""
        self._mesh.close()

    def close(self) -> None:
        """Let go of the others; what is mapped stays."""
        self._mesh.close()
        self.peers.close()


def check_platform() -> None:
    """RuntimeError unless this system has what shared memory between ranks needs."""
    if not can_share():
        raise RuntimeError(
            f"expected Linux 5.3 or newer for ranks that share memory, got {sys.platform}: use "
            f"world 1 or Loopback here, or kind='process_group'"
        )
    check_ordering()


def can_share() -> bool:
    """Whether this system knows anonymous files and handles of processes."""
    return sys.platform.startswith("linux") and hasattr(os, "pidfd_open")


def _board(mapping: mmap.mmap) -> Board:
    address = as_array(mapping).ctypes.data
    page = memoryview(mapping)
    return Board(page, ordered_words(page, address), address)
