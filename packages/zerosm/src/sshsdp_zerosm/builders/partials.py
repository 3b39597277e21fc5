"""Sums in two levels: within a node first, then one partial sum per node."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from sshsdp_zerosm.builders.cuts import ALIGNMENT, even_slice, padded, turns
from sshsdp_zerosm.builders.placement import Placement
from sshsdp_zerosm.ops import Fence, Op, Put, Reduce, Signal, Wait
from sshsdp_zerosm.region import Region


@dataclass(frozen=True)
class Partials:
    """Operations of one member, step by step.

    The agent for a chunk's owner on another node sums its node's inputs, in group order, and puts
    the partial sum into the owner's workspace, turn by turn. The owner sums its own node's partial
    too, and then all partials in node order.

    A workspace holds the partials of all nodes for the own chunk, then two buffers of one turn for
    each client: one is filled while the other is sent.

    Attributes:
        placement: the members on their nodes.
        name: of the channels.
        dtype: of the inputs.
        accumulator: dtype of the partials.
        counts: elements of each member's chunk.
        chunk_bytes: of the longest chunk's partial per turn.
    """

    placement: Placement
    name: str
    dtype: torch.dtype
    accumulator: torch.dtype
    counts: Sequence[int]
    chunk_bytes: int

    @staticmethod
    def channels(name: str) -> list[str]:
        """All that the steps use."""
        return [f"{name}.{step}" for step in ("room", "partial")]

    @cached_property
    def _turns(self) -> int:
        return turns(max(self.counts) * self.accumulator.itemsize, self.chunk_bytes)

    @cached_property
    def _buffer_bytes(self) -> int:
        if not self._turns:
            return 0
        return padded(self._cut(self.counts.index(max(self.counts)), 0)[1])

    def workspace_bytes(self, place: int) -> int:
        """What the member needs."""
        clients = len(self.placement.all_clients(place))
        return self._incoming_bytes(place) + 2 * clients * self._buffer_bytes

    def open(self, place: int) -> list[Op]:
        """Tell the agents that the own workspace is free."""
        if not self._turns:
            return []
        return [Signal(f"{self.name}.room", self.placement.ranks(self.placement.agents(place)))]

    def send(
        self,
        place: int,
        chunk: Callable[[int, int], Region],
        workspace: Callable[[int], Region],
    ) -> list[Op]:
        """Sum and put for the clients.

        Args:
            place: the member.
            chunk: (member, owner) -> the owner's chunk of the member's input, which is complete.
            workspace: place -> the member's workspace.
        """
        own = self.placement.node(place)
        clients = self.placement.all_clients(place)
        ops: list[Op] = []
        for turn in range(self._turns):
            for number, client in enumerate(clients):
                start, nbytes = self._cut(client, turn)
                rank = self.placement.group.ranks[client]
                if nbytes:
                    buffer = workspace(place).part(
                        self._incoming_bytes(place) + (2 * number + turn % 2) * self._buffer_bytes,
                        nbytes,
                    )
                    if turn >= 2:
                        ops.append(Fence(buffer))
                    ops.append(self._partial(own, client, start, buffer, chunk))
                if turn == 0:
                    ops.append(Wait(rank, f"{self.name}.room"))
                if nbytes:
                    ops.append(
                        Put(buffer, self._of_node(workspace, client, own).part(start, nbytes))
                    )
            if clients:
                ops.append(Signal(f"{self.name}.partial", self.placement.ranks(clients)))
        return ops

    def keep(
        self,
        place: int,
        chunk: Callable[[int, int], Region],
        workspace: Callable[[int], Region],
    ) -> list[Op]:
        """Sum the own node's inputs for the own chunk; no input is read after it."""
        if not self.counts[place]:
            return []
        own = self.placement.node(place)
        return [self._partial(own, place, 0, self._of_node(workspace, place, own), chunk)]

    def total(
        self,
        place: int,
        workspace: Callable[[int], Region],
        add: Callable[[tuple[Region, ...], int, int], Reduce],
    ) -> list[Op]:
        """Sum the partials as they arrive.

        Args:
            place: the member.
            workspace: place -> the member's workspace.
            add: (partials in node order, first element, elements) -> the sum of that piece.
        """
        size = self.accumulator.itemsize
        origins = self.placement.agents(place)[::-1]
        nodes = range(len(self.placement.nodes))
        ops: list[Op] = []
        for turn in range(self._turns):
            ops += [Wait(rank, f"{self.name}.partial") for rank in self.placement.ranks(origins)]
            start, nbytes = self._cut(place, turn)
            if nbytes:
                sources = tuple(
                    self._of_node(workspace, place, node).part(start, nbytes) for node in nodes
                )
                ops.append(add(sources, start // size, nbytes // size))
        return ops

    def settle(self, place: int, workspace: Callable[[int], Region]) -> list[Op]:
        """Wait until nothing is sent from the own workspace any more."""
        start = self._incoming_bytes(place)
        nbytes = self.workspace_bytes(place) - start
        return [Fence(workspace(place).part(start, nbytes))] if nbytes else []

    def _partial(
        self,
        node: int,
        owner: int,
        start: int,
        target: Region,
        chunk: Callable[[int, int], Region],
    ) -> Reduce:
        scale = self.accumulator.itemsize // self.dtype.itemsize
        sources = tuple(
            chunk(member, owner).part(start // scale, target.nbytes // scale)
            for member in self.placement.nodes[node]
        )
        return Reduce(sources, target, self.dtype, self.accumulator, overwrite=True)

    def _of_node(self, workspace: Callable[[int], Region], owner: int, node: int) -> Region:
        nbytes = self.counts[owner] * self.accumulator.itemsize
        return workspace(owner).part(node * padded(nbytes), nbytes)

    def _incoming_bytes(self, place: int) -> int:
        nbytes = self.counts[place] * self.accumulator.itemsize
        return len(self.placement.nodes) * padded(nbytes)

    def _cut(self, owner: int, turn: int) -> tuple[int, int]:
        """(start, length) in bytes of the partial."""
        nbytes = self.counts[owner] * self.accumulator.itemsize
        return even_slice(nbytes, self._turns, ALIGNMENT, turn)
