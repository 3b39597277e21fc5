"""The transport of nodes: shared memory inside, messages between."""

import contextlib
import socket

import numpy as np
import torch

from sshsdp_zerosm.agreement import agree_on_arena, agree_on_success
from sshsdp_zerosm.arena import Arena, Memory, padded
from sshsdp_zerosm.board import BOARD_BYTES, Board
from sshsdp_zerosm.composite.waiter import CompositeWaiter
from sshsdp_zerosm.distress import Distress
from sshsdp_zerosm.errors import PeerClosedError, TransportError
from sshsdp_zerosm.mailbox import Kind
from sshsdp_zerosm.meeting import Meeting
from sshsdp_zerosm.process_group import Network, NetworkRemote, NetworkWaiter
from sshsdp_zerosm.shared_memory.node import Node
from sshsdp_zerosm.shared_memory.waiter import FutexWaiter
from sshsdp_zerosm.transport import Transport


class CompositeTransport(Transport):
    """A rank that maps its node's memory and reaches all others by messages; see ``connect``.

    It is ordered: all ranks run the same programs in the same sequence.

    Args:
        meeting: of the ranks.
        listener: the socket of this rank's card.

    Raises:
        TransportError: ranks that can't be reached.
    """

    def __init__(self, meeting: Meeting, listener: socket.socket) -> None:
        rank, timeout, topology = meeting.rank, meeting.timeout, meeting.topology
        near = topology.ranks_of(topology.node_of(rank))
        far = [peer for peer in range(topology.world) if peer not in near]
        self._hosts = meeting.hosts
        distress = Distress(meeting.store, rank, topology.world)
        with contextlib.ExitStack() as stack, distress.telling():
            cards = {peer: meeting.cards[peer] for peer in near}
            self._node = Node(rank, cards, listener, distress, timeout)
            stack.callback(self._node.close)
            shared = self._node.share_boards()
            boards = [shared.get(peer) or Board.local() for peer in range(topology.world)]
            self._node.peers.watch(boards)
            self._network = Network(meeting, boards, far)
            stack.callback(self._network.close)
            self._remote = NetworkRemote(self._network, far)
            waiter = CompositeWaiter(
                FutexWaiter(rank, boards, self._check, timeout, meeting.neighbours),
                NetworkWaiter(rank, boards, self._network, self._check, timeout),
                self._network,
                near,
            )
            super().__init__(rank, topology.world, timeout, boards, waiter, topology, self._remote)
            self.external_bytes = (1 + len(far)) * BOARD_BYTES
            self._network.start(self._fail)
            self._node.tell_waits(self._show_wait)
            self.barrier()
            stack.pop_all()

    def _show_wait(self, peer: int) -> None:
        own = peer == self.rank
        self._own.show_wait(None if own else peer)
        if not own:
            self._network.remind(peer)

    def _fail(self, error: TransportError) -> None:
        self._waiter.failure = self._waiter.failure or error

    def _check(self, source: int) -> TransportError | None:
        error = self._network.check(source) or self._node.peers.check(source)
        # A neighbour's board says that it has closed before its last message says why.
        if isinstance(error, PeerClosedError) and self._network.awaits(source):
            return None
        return error

    def _agree(self, name: str, nbytes: int, shared: bool) -> None:
        nodes = range(self.topology.nodes)
        creators = {rank for node in nodes for rank in self._creators(node, shared)}
        agree_on_arena(self._mailbox, name, nbytes, shared, self._hosts, creators)

    def _create(self, name: str, nbytes: int, shared: bool) -> Arena:
        creators = self._creators(self.topology.node_of(self.rank), shared)
        mapped: dict[int, Memory] = {}
        errors: list[str] = []
        if nbytes:
            mapped, errors = self._node.share_memory(name, nbytes, creators)
        empty = np.empty(0, dtype=np.uint8)
        memories: list[Memory | None] = [None] * self.world
        for rank in self._node.ranks:
            memories[rank] = mapped.get(creators[0] if shared else rank, empty)
        arena = Arena(name, nbytes, shared=shared, rank=self.rank, memories=memories)
        # Registered before the others can know that it is: they may put at once.
        own = torch.empty(0, dtype=torch.uint8) if errors else arena.tensor()
        self._remote.register(name, own)
        agree_on_success(self._mailbox, f"arena {name!r}", errors)
        if self.rank in creators:
            self.external_bytes += padded(nbytes)
        return arena

    def _creators(self, node: int, shared: bool) -> tuple[int, ...]:
        ranks = tuple(self.topology.ranks_of(node))
        return ranks[:1] if shared else ranks

    def _forget(self, name: str) -> None:
        self._remote.forget(name)

    def _seal(self) -> None:
        self._mailbox.post(Kind.SEAL, b"").wait()
        self._node.seal()

    def _disconnect(self) -> None:
        self._network.close()
        self._node.close()
        for board in self._boards:
            board.release()
