"""Everybody's part to everybody: once to each other node, and from there within the node."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from sshsdp_zerosm.builders.cuts import ALIGNMENT, even_slice, turns
from sshsdp_zerosm.builders.placement import Placement
from sshsdp_zerosm.ops import Fence, Op, Pull, Put, Signal, Wait
from sshsdp_zerosm.region import Region


@dataclass(frozen=True)
class Distribution:
    """Operations of one member, step by step.

    A member puts its part into the memory of its agent on each other node, turn by turn; the agent
    tells its siblings, who pull it while the next turn is on its way.

    Attributes:
        placement: the members on their nodes.
        name: of the channels.
        lengths: bytes of each member's part.
        source: place -> the member's part in its own memory.
        target: (holder, owner) -> where the owner's part belongs in the holder's memory.
        chunk_bytes: of the longest part per turn.
    """

    placement: Placement
    name: str
    lengths: Sequence[int]
    source: Callable[[int], Region]
    target: Callable[[int, int], Region]
    chunk_bytes: int

    @staticmethod
    def channels(name: str) -> list[str]:
        """All that the steps use."""
        return [f"{name}.{step}" for step in ("sent", "landed", "done")]

    @cached_property
    def _turns(self) -> int:
        return turns(max(self.lengths), self.chunk_bytes)

    def puts(self, place: int) -> list[Op]:
        """Put the own part into the agents' memory, which must be free for it."""
        agents = self.placement.agents(place)
        source = self.source(place)
        ops: list[Op] = []
        for turn in range(self._turns):
            start, nbytes = self._cut(place, turn)
            if nbytes:
                ops += [
                    Put(source.part(start, nbytes), self.target(agent, place).part(start, nbytes))
                    for agent in agents
                ]
            ops.append(Signal(f"{self.name}.sent", self.placement.ranks(agents)))
        return ops

    def within(self, place: int) -> list[Op]:
        """Pull the siblings' parts, which must be readable, and copy the own one."""
        moves = [
            (self.source(owner), self.target(place, owner))
            for owner in (*self.placement.siblings(place), place)
            if self.lengths[owner]
        ]
        return [Pull(source, target) for source, target in moves if source != target]

    def arrivals(self, place: int) -> list[Op]:
        """Pass on what arrives here, and pull what arrives at the siblings."""
        ops: list[Op] = []
        for turn in range(self._turns):
            # Who is nearest before us sends to us first.
            for origin in self.placement.foreign(place)[::-1]:
                ops += self._pass_on(place, origin)
                for sibling in self.placement.siblings(place):
                    ops += self._fetch(place, sibling, origin, turn)
        return ops

    def finish(self, place: int) -> list[Op]:
        """Wait until nobody reads the own memory any more."""
        siblings = self.placement.ranks(self.placement.siblings(place))
        ops: list[Op] = []
        if siblings:
            channel = f"{self.name}.done"
            ops += [Signal(channel, siblings), *(Wait(peer, channel) for peer in siblings)]
        if self.lengths[place]:
            ops.append(Fence(self.source(place)))
        return ops

    def _pass_on(self, place: int, origin: int) -> list[Op]:
        clients = self.placement.ranks(self.placement.clients(place, origin))
        siblings = self.placement.ranks(self.placement.siblings(place))
        ops: list[Op] = [Wait(client, f"{self.name}.sent") for client in clients]
        if clients and siblings:
            ops.append(Signal(f"{self.name}.landed", siblings))
        return ops

    def _fetch(self, place: int, sibling: int, origin: int, turn: int) -> list[Op]:
        clients = self.placement.clients(sibling, origin)
        if not clients:
            return []
        ops: list[Op] = [Wait(self.placement.group.ranks[sibling], f"{self.name}.landed")]
        for owner in clients:
            start, nbytes = self._cut(owner, turn)
            if nbytes:
                source = self.target(sibling, owner).part(start, nbytes)
                ops.append(Pull(source, self.target(place, owner).part(start, nbytes)))
        return ops

    def _cut(self, owner: int, turn: int) -> tuple[int, int]:
        return even_slice(self.lengths[owner], self._turns, ALIGNMENT, turn)
