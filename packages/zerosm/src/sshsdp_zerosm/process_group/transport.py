"""The transport between ranks that share nothing."""

import numpy as np

from sshsdp_zerosm.agreement import agree_on_arena, agree_on_success
from sshsdp_zerosm.arena import Arena, Memory, local_memory, padded
from sshsdp_zerosm.board import BOARD_BYTES, Board
from sshsdp_zerosm.errors import TransportError
from sshsdp_zerosm.mailbox import Kind
from sshsdp_zerosm.meeting import Meeting
from sshsdp_zerosm.process_group.network import Network
from sshsdp_zerosm.process_group.remote import NetworkRemote
from sshsdp_zerosm.process_group.waiter import NetworkWaiter
from sshsdp_zerosm.transport import Transport


class ProcessGroupTransport(Transport):
    """A rank that reaches all others by messages; use ``connect`` to make one.

    It is ordered: all ranks run the same programs in the same sequence.

    Args:
        meeting: of the ranks; every one is a node of its own.

    Raises:
        TransportError: ranks that can't be reached.
    """

    def __init__(self, meeting: Meeting) -> None:
        rank, world = meeting.rank, len(meeting.cards)
        self._hosts = meeting.hosts
        far = [peer for peer in range(world) if peer != rank]
        boards = [Board.local() for _ in range(world)]
        self._network = Network(meeting, boards, far)
        self._remote = NetworkRemote(self._network, far)
        waiter = NetworkWaiter(rank, boards, self._network, self._network.check, meeting.timeout)
        super().__init__(
            rank, world, meeting.timeout, boards, waiter, meeting.topology, self._remote
        )
        self.external_bytes = world * BOARD_BYTES
        self._network.start(self._fail)
        self.barrier()

    def _fail(self, error: TransportError) -> None:
        self._waiter.failure = self._waiter.failure or error

    def _agree(self, name: str, nbytes: int, shared: bool) -> None:
        # Alone on its node, a rank's shared memory is its own.
        everyone = range(self.world)
        agree_on_arena(self._mailbox, name, nbytes, shared, self._hosts, everyone)

    def _create(self, name: str, nbytes: int, shared: bool) -> Arena:
        memories: list[Memory | None] = [None] * self.world
        errors = []
        try:
            memory = local_memory(nbytes)
            memory.fill(0)  # now, so that a lack of memory is an error here
        except MemoryError as error:
            memory = np.empty(0, dtype=np.uint8)
            errors.append(f"can't reserve {nbytes} bytes ({error})")
        memories[self.rank] = memory
        arena = Arena(name, nbytes, shared=shared, rank=self.rank, memories=memories)
        # Registered before the others can know that it is: they may put at once.
        self._remote.register(name, arena.tensor())
        agree_on_success(self._mailbox, f"arena {name!r}", errors)
        self.external_bytes += padded(nbytes)
        return arena

    def _forget(self, name: str) -> None:
        self._remote.forget(name)

    def _seal(self) -> None:
        self._mailbox.post(Kind.SEAL, b"").wait()

    def _disconnect(self) -> None:
        self._network.close()
        for board in self._boards:
            board.release()
