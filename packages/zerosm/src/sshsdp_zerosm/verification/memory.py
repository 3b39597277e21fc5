"""Who has touched which bytes, and whether what follows is ordered after it."""

import itertools
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from sshsdp_zerosm.region import Region
from sshsdp_zerosm.topology import Topology
from sshsdp_zerosm.verification.story import Event

Clock = npt.NDArray[np.int64]
"""Per rank, how many of its events are over."""


class Access:
    """An event that touches memory, and the events by which it is known to be over.

    A put is over when a Fence says so, or a Wait for a Signal that followed it; anything else is
    over when it returns.
    """

    __slots__ = ("ends", "event")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.ends: list[tuple[int, int]] = []

    def over(self, clock: Clock) -> bool:
        """Whether it is known to be over at `clock`."""
        for rank, count in self.ends:  # noqa: SIM110 (any() costs twice as much, and this is hot)
            if clock[rank] >= count:
                return True
        return False


class _Cell:
    """Bytes that every region contains completely or not at all."""

    __slots__ = ("defined", "name", "reads", "write")

    def __init__(self, name: str) -> None:
        self.name = name
        self.defined = False
        self.write: Access | None = None
        self.reads: list[Access] = []


class Memory:
    """All ranks' memory.

    Args:
        regions: all that will be touched.
        topology: which ranks share a node.
        shared: arenas of which the ranks of a node have one memory.
    """

    def __init__(
        self, regions: Iterable[Region], topology: Topology, shared: Collection[str]
    ) -> None:
        self._topology = topology
        self._shared = frozenset(shared)
        bounds: dict[tuple[str, int], set[int]] = {}
        for region in regions:
            bounds.setdefault(self._key(region), set()).update((region.offset, region.stop))
        self._bounds = {key: sorted(values) for key, values in bounds.items()}
        self._cells = {
            (arena, owner): [
                _Cell(f"{arena}[{owner}][{start}:{stop}]")
                for start, stop in itertools.pairwise(values)
            ]
            for (arena, owner), values in self._bounds.items()
        }

    def define(self, region: Region) -> None:
        """There are values from the start."""
        for cell in self._covered(region):
            cell.defined = True

    def read(self, region: Region, access: Access, clock: Clock) -> Iterator[str]:
        """Record; what is wrong about it."""
        undefined: list[str] = []
        for cell in self._covered(region):
            if not cell.defined:
                undefined.append(cell.name)
            elif cell.write is not None and not cell.write.over(clock):
                yield _race(cell.name, cell.write, access)
            cell.reads = [
                reader
                for reader in cell.reads
                if reader.event.rank != access.event.rank or not reader.over(clock)
            ]
            cell.reads.append(access)
        if undefined:
            yield f"{access.event} reads {undefined[0]}, which nobody has written"

    def write(self, region: Region, access: Access, clock: Clock) -> Iterator[str]:
        """Record; what is wrong about it."""
        for cell in self._covered(region):
            last = cell.write
            if last is not None and not last.over(clock):
                yield _race(cell.name, last, access)
            for reader in cell.reads:
                if reader is not access and not reader.over(clock):
                    yield _race(cell.name, reader, access)
            if last is not None and not cell.reads and last.event.scene == access.event.scene:
                yield (
                    f"{access.event} overwrites {cell.name}, written by {last.event} and never read"
                )
            cell.write, cell.reads, cell.defined = access, [], True

    def _key(self, region: Region) -> tuple[str, int]:
        owner = region.rank
        if region.arena in self._shared:
            owner = self._topology.ranks_of(self._topology.node_of(owner))[0]
        return region.arena, owner

    def _covered(self, region: Region) -> Iterator[_Cell]:
        if not region.nbytes:
            return
        key = self._key(region)
        bounds, cells = self._bounds[key], self._cells[key]
        at = bisect_left(bounds, region.offset)
        while bounds[at] < region.stop:
            yield cells[at]
            at += 1


def _race(name: str, first: Access, second: Access) -> str:
    return f"{first.event} and {second.event} both touch {name} in no fixed order"
