"""The transport between processes of one host."""

import contextlib
import mmap
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from sshsdp_zerosm.arena import Arena, Memory, padded
from sshsdp_zerosm.board import BOARD_BYTES, Board
from sshsdp_zerosm.errors import TransportError
from sshsdp_zerosm.mailbox import Kind
from sshsdp_zerosm.shared_memory.agreement import agree_on_arena, agree_on_success
from sshsdp_zerosm.shared_memory.card import Card, trade_cards
from sshsdp_zerosm.shared_memory.handover import Handover
from sshsdp_zerosm.shared_memory.memory import as_array
from sshsdp_zerosm.shared_memory.mesh import Mesh, new_socket
from sshsdp_zerosm.shared_memory.peers import Peers
from sshsdp_zerosm.shared_memory.waiter import FutexWaiter
from sshsdp_zerosm.transport import Transport
from sshsdp_zerosm.words import check_ordering, ordered_words


class SharedMemoryTransport(Transport):
    """A rank whose memory all other ranks map; use ``connect`` to make one.

    Memory is anonymous (memfd), so nothing stays behind whatever happens to the processes.

    Args:
        rank: this rank.
        world: number of ranks, all on this host.
        store: a torch.distributed store; None only in a world of one.
        timeout: seconds that a wait may take.

    Raises:
        RuntimeError: not Linux, or no ordered loads and stores on this processor.
        TransportError: ranks that can't share memory, or that don't come.
    """

    def __init__(self, rank: int, world: int, store: Any, timeout: float) -> None:
        check_platform()
        with contextlib.ExitStack() as stack, new_socket() as listener:
            own = Card.own(world)
            listener.bind(own.socket_name)
            listener.listen(world)
            cards = [own] if store is None else trade_cards(rank, own, store, timeout)
            self._peers = Peers(
                rank, {peer: card.pid for peer, card in enumerate(cards) if peer != rank}
            )
            stack.callback(self._peers.close)
            self._mesh = Mesh(rank, cards, self._peers, timeout)
            stack.callback(self._mesh.close)
            self._mesh.connect(listener)
            self._handover = Handover(rank, world, self._mesh)
            boards = self._share_boards(world)
            self._peers.watch(boards)
            waiter = FutexWaiter(rank, boards, self._peers, timeout)
            super().__init__(rank, world, timeout, boards, waiter)
            self.external_bytes = BOARD_BYTES
            # Every rank maps every page before anyone uses one.
            self.barrier()
            stack.pop_all()

    def _share_boards(self, world: int) -> list[Board]:
        mappings, errors = self._handover.run("sshsdp-board", BOARD_BYTES, range(world))
        if errors:
            raise TransportError(f"can't share the control pages: {'; '.join(errors)}")
        return [_board(mapping) for mapping in mappings]

    def _agree(self, name: str, nbytes: int, shared: bool) -> None:
        agree_on_arena(self._mailbox, name, nbytes, shared)

    def _create(self, name: str, nbytes: int, shared: bool) -> Arena:
        creators = (0,) if shared else tuple(range(self.world))
        mappings: Sequence[mmap.mmap] = ()
        if nbytes:
            mappings, errors = self._handover.run(f"sshsdp-{name}", padded(nbytes), creators)
            agree_on_success(self._mailbox, f"arena {name!r}", errors)
        memories: list[Memory] = [as_array(mapping) for mapping in mappings]
        memories = memories or [np.empty(0, dtype=np.uint8) for _ in creators]
        if self.rank in creators:
            self.external_bytes += padded(nbytes)
        return Arena(
            name,
            nbytes,
            shared=shared,
            rank=self.rank,
            memories=memories * self.world if shared else memories,
        )

    def _seal(self) -> None:
        self._mailbox.post(Kind.SEAL, b"").wait()
        self._mesh.close()

    def _disconnect(self) -> None:
        self._mesh.close()
        self._peers.close()
        for board in self._boards:
            board.release()


def check_platform() -> None:
    """RuntimeError unless this system has what shared memory between ranks needs."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        raise RuntimeError(
            f"expected Linux 5.3 or newer for ranks that share memory, got {sys.platform}: use "
            f"world 1 or Loopback here"
        )
    check_ordering()


def _board(mapping: mmap.mmap) -> Board:
    address = as_array(mapping).ctypes.data
    page = memoryview(mapping)
    return Board(page, ordered_words(page, address), address)
