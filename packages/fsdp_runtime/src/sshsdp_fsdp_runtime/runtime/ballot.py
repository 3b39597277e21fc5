"""One small message per rank and turn, posted now and collected when somebody needs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from sshsdp_fsdp_runtime.plan import Votes
from sshsdp_fsdp_runtime.plan.votes import HEADER_BYTES
from sshsdp_fsdp_runtime.runtime.labelled_program import LabelledProgram
from sshsdp_zerosm import Arena, Transport

_KIND, _TOTAL = 0, 1  # numbers that a rank shows when it opens a turn


@dataclass(frozen=True, slots=True)
class Vote:
    """What one rank says in a turn, or several ranks together.

    Attributes:
        kinds: lowest and highest kind of message; 0 to 255.
        totals: lowest and highest count of passes.
        bits: flags, set if any rank sets them.
    """

    kinds: tuple[int, int]
    totals: tuple[int, int]
    bits: int

    @classmethod
    def merged(cls, votes: Sequence[Self]) -> Self:
        """What all of them say together."""
        bits = 0
        for vote in votes:
            bits |= vote.bits
        return cls(
            (min(v.kinds[0] for v in votes), max(v.kinds[1] for v in votes)),
            (min(v.totals[0] for v in votes), max(v.totals[1] for v in votes)),
            bits,
        )

    @classmethod
    def read(cls, message: bytes) -> Self:
        """From bytes."""
        low, high = (int.from_bytes(message[at : at + 8], "little") for at in (2, 10))
        bits = int.from_bytes(message[HEADER_BYTES:], "little")
        return cls((message[0], message[1]), (low, high), bits)

    def written(self, length: int) -> bytes:
        """As `length` bytes."""
        numbers = b"".join(total.to_bytes(8, "little") for total in self.totals)
        bits = self.bits.to_bytes(length - HEADER_BYTES, "little")
        return bytes(self.kinds) + numbers + bits


class Ballot:
    """Every rank opens a turn, then posts a vote; collecting returns what all say together.

    Opening and posting never block.

    Args:
        votes: the plan of its memory.
        transport: connects the ranks.
        arena: that memory.

    Attributes:
        opened: this rank has opened the turn.
        posted: it has posted its vote, and not collected.
    """

    def __init__(self, votes: Votes, transport: Transport, arena: Arena) -> None:
        self._votes = votes
        self._check = transport.check_process
        self._turn = 0
        self.opened = False
        self.posted = False
        topology = votes.topology
        self._rank = transport.rank
        self._node = topology.node_of(self._rank)
        self._memories = {
            rank: arena.tensor(rank).numpy() for rank in topology.ranks_of(self._node)
        }
        self._memory = self._memories[self._rank]
        self._numbers = [
            self._memories.get(rank, self._memory)[votes.live(rank)].view(np.int64)
            for rank in range(topology.world)
        ]
        program = transport.compile(votes.schedule(arena.name))
        self._program = LabelledProgram(program, "votes")
        self._waited = False

    def open(self, kind: int, total: int) -> None:
        """Show the others of what kind the turn is here, and a count of passes."""
        self._check()
        assert not self.opened
        self._numbers[self._rank][:] = (kind, total)
        self._program.run("open")
        self.opened = True

    def openings(self) -> list[tuple[int, int]]:
        """Wait until all ranks have opened the turn; their kinds and counts, before the vote."""
        assert self.opened
        # Nobody opens the next turn, which changes the numbers, before this rank has voted.
        assert not self.posted
        self._wait_for_openings()
        return [(int(own[_KIND]), int(own[_TOTAL])) for own in self._numbers]

    def post(self, vote: Vote) -> None:
        """Make `vote` readable by the others."""
        assert self.opened
        assert not self.posted
        self._check()
        self._write(self._votes.own(self._turn), vote)
        self._program.run("post")
        self.posted = True

    def collect(self) -> Vote:
        """Wait until all ranks have posted this turn; what they say together."""
        assert self.posted
        self._wait_for_openings()
        self._program.run("collect")
        own = self._votes.own(self._turn)
        vote = Vote.merged([Vote.read(m[own].tobytes()) for m in self._memories.values()])
        if self._votes.topology.nodes > 1:
            vote = self._merge_nodes(vote)
        self.opened = self.posted = self._waited = False
        self._turn += 1
        return vote

    def close(self) -> None:
        """Let go of the memory; there are no more turns."""
        self._memories.clear()
        self._numbers.clear()
        self._memory = np.empty(0, np.uint8)
        self._program.release()

    def _wait_for_openings(self) -> None:
        if not self._waited:
            self._program.run("opened")
            self._waited = True

    def _merge_nodes(self, vote: Vote) -> Vote:
        """Tell the other nodes what this one says; what all of them say together."""
        self._write(self._votes.node(self._turn), vote)
        self._program.run(f"send{self._turn % 2}")
        self._program.run("arrive")
        arrived = [
            Vote.read(self._memory[self._votes.arrived(self._turn, node)].tobytes())
            for node in range(self._votes.topology.nodes)
            if node != self._node
        ]
        return Vote.merged([vote, *arrived])

    def _write(self, place: slice, vote: Vote) -> None:
        self._memory[place] = np.frombuffer(vote.written(self._votes.message_bytes), np.uint8)
