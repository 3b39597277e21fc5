"""Which peers of the own host still live."""

import os
import select
from collections.abc import Mapping, Sequence

from sshsdp_zerosm.board import CLOSED, Board
from sshsdp_zerosm.errors import TransportError
from sshsdp_zerosm.waiter import find_abort, peer_closed, peers_died


class Peers:
    """One pidfd per peer; it turns readable when the process ends, and never means another one.

    Args:
        rank: this rank.
        pids: process id of every other rank.
    """

    def __init__(self, rank: int, pids: Mapping[int, int]) -> None:
        self._rank = rank
        self._poll = select.poll()
        self._rank_of: dict[int, int] = {}
        self._boards: Sequence[Board] = ()
        try:
            for peer, pid in pids.items():
                descriptor = self._open(peer, pid)
                self._rank_of[descriptor] = peer
                self._poll.register(descriptor, select.POLLIN)
        except BaseException:
            self.close()
            raise

    def watch(self, boards: Sequence[Board]) -> None:
        """From now on tell an orderly end by the peers' boards."""
        self._boards = boards

    def check(self, source: int) -> TransportError | None:
        """Why a wait for `source` is hopeless, or None.

        A peer that died makes any wait hopeless, whomever it is for; a peer that closed its
        transport only those for itself.
        """
        if error := find_abort(self._boards):
            return error
        if ended := self._poll.poll(0):
            died = [
                self._rank_of[descriptor]
                for descriptor, _ in ended
                if not self._boards or not self._boards[self._rank_of[descriptor]].words[CLOSED]
            ]
            if died:
                return peers_died(self._rank, died)
            for descriptor, _ in ended:
                self._forget(descriptor)
        if self._boards and self._boards[source].words[CLOSED]:
            return peer_closed(self._rank, source)
        return None

    def close(self) -> None:
        """Close the pidfds."""
        for descriptor in list(self._rank_of):
            self._forget(descriptor)

    def _open(self, peer: int, pid: int) -> int:
        try:
            return os.pidfd_open(pid)
        except ProcessLookupError:
            raise peers_died(self._rank, [peer]) from None

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._rank_of[descriptor]
        os.close(descriptor)
