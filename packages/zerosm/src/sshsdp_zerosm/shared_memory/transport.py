"""The transport between processes of one host."""

import contextlib
import socket

import numpy as np

from sshsdp_zerosm.agreement import agree_on_arena, agree_on_success
from sshsdp_zerosm.arena import Arena, Memory, padded
from sshsdp_zerosm.board import BOARD_BYTES
from sshsdp_zerosm.distress import Distress
from sshsdp_zerosm.mailbox import Kind
from sshsdp_zerosm.meeting import Meeting
from sshsdp_zerosm.shared_memory.node import Node
from sshsdp_zerosm.shared_memory.waiter import FutexWaiter
from sshsdp_zerosm.transport import Transport


class SharedMemoryTransport(Transport):
    """A rank whose memory all other ranks map; use ``connect`` to make one.

    Args:
        meeting: of the ranks, all on this host.
        listener: the socket of this rank's card.

    Raises:
        TransportError: ranks that can't share memory, or that don't come.
    """

    def __init__(self, meeting: Meeting, listener: socket.socket) -> None:
        cards = dict(enumerate(meeting.cards))
        distress = Distress(meeting.store, meeting.rank, len(cards))
        with contextlib.ExitStack() as stack, distress.telling():
            self._node = Node(meeting.rank, cards, listener, distress, meeting.timeout)
            stack.callback(self._node.close)
            boards = list(self._node.share_boards().values())
            self._node.peers.watch(boards)
            waiter = FutexWaiter(
                meeting.rank, boards, self._node.peers.check, meeting.timeout, len(cards)
            )
            super().__init__(meeting.rank, len(cards), meeting.timeout, boards, waiter)
            self.external_bytes = BOARD_BYTES
            self._node.tell_waits(self._show_wait)
            # Every rank maps every page before anyone uses one.
            self.barrier()
            stack.pop_all()

    def _show_wait(self, peer: int) -> None:
        self._own.show_wait(None if peer == self.rank else peer)

    def _agree(self, name: str, nbytes: int, shared: bool) -> None:
        hosts = [0] * self.world
        creators = self._creators(shared)
        agree_on_arena(self._mailbox, name, nbytes, shared, hosts, creators)

    def _create(self, name: str, nbytes: int, shared: bool) -> Arena:
        creators = self._creators(shared)
        memories: dict[int, Memory] = {}
        if nbytes:
            memories, errors = self._node.share_memory(name, nbytes, creators)
            agree_on_success(self._mailbox, f"arena {name!r}", errors)
        if self.rank in creators:
            self.external_bytes += padded(nbytes)
        empty = np.empty(0, dtype=np.uint8)
        mapped = [
            memories.get(creators[0] if shared else rank, empty) for rank in range(self.world)
        ]
        return Arena(name, nbytes, shared=shared, rank=self.rank, memories=mapped)

    def _forget(self, name: str) -> None:
        pass  # mappings go with the arena

    def _creators(self, shared: bool) -> tuple[int, ...]:
        return (0,) if shared else tuple(range(self.world))

    def _seal(self) -> None:
        self._mailbox.post(Kind.SEAL, b"").wait()
        self._node.seal()

    def _disconnect(self) -> None:
        self._node.close()
        for board in self._boards:
            board.release()
