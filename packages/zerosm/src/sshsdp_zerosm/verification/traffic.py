"""Bytes that a rank moves, within its node and to other nodes."""

from collections.abc import Iterable
from typing import NamedTuple

from sshsdp_zerosm.ops import Op, Pull, Put, Reduce
from sshsdp_zerosm.region import Region
from sshsdp_zerosm.schedule import Schedule
from sshsdp_zerosm.topology import Topology


class Traffic(NamedTuple):
    """Bytes that a rank's own operations move between its memory and that of other ranks.

    Attributes:
        within: to or from ranks of the same node.
        between: to or from ranks of other nodes.
    """

    within: int
    between: int

    @classmethod
    def sum(cls, parts: Iterable["Traffic"]) -> "Traffic":
        """All of them together."""
        within = between = 0
        for part in parts:
            within += part.within
            between += part.between
        return cls(within, between)


def traffic(schedule: Schedule, phase: str, rank: int, topology: Topology) -> Traffic:
    """What `rank` moves in one run of `phase`; no other rank's operations are expanded."""
    return Traffic.sum(op_traffic(op, rank, topology) for op in schedule.ops(phase, rank))


def op_traffic(op: Op, rank: int, topology: Topology) -> Traffic:
    """What one operation of `rank` moves."""
    regions: tuple[Region, ...] = ()
    match op:
        case Put():
            regions = (op.target,)
        case Pull():
            regions = (op.source,)
        case Reduce():
            regions = op.sources
    node = topology.node_of(rank)
    within = between = 0
    for region in regions:
        if topology.node_of(region.rank) != node:
            between += region.nbytes
        elif region.rank != rank:
            within += region.nbytes
    return Traffic(within, between)
