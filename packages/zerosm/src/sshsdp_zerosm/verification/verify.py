"""Proof that schedules work, from their data alone."""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sshsdp_zerosm.ops import Pull, Reduce
from sshsdp_zerosm.region import Region
from sshsdp_zerosm.schedule import Schedule
from sshsdp_zerosm.topology import Topology
from sshsdp_zerosm.verification.story import Run, Scene
from sshsdp_zerosm.verification.trace import Trace
from sshsdp_zerosm.verification.traffic import Traffic, traffic

MOST_FAULTS = 10
"""How many an error lists."""


class ScheduleError(ValueError):
    """Schedules that don't work.

    Attributes:
        faults: what is wrong, at most MOST_FAULTS of it.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("expected schedules that work, got\n" + "\n".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class Verified:
    """What was looked at.

    Attributes:
        events: number of operations of all ranks.
        moved: bytes between ranks of the same node and of different nodes, of all ranks.
        least_between: bytes that no algorithm can avoid to move between nodes, of those schedules
            that state it.
    """

    events: int
    moved: Traffic
    least_between: int


def verify(
    what: Schedule | Sequence[Scene],
    topology: Topology,
    *,
    initial: Iterable[Region] = (),
    shared: Collection[str] = (),
    ranks: Iterable[int] | None = None,
) -> Verified:
    """Prove that all ranks get through, and that no timing changes what they compute.

    - No deadlock: every wait is answered, and no signal is left over.
    - No race: of two accesses to the same bytes, one of them a write, one is over before the other
      starts, by waits for signals. A put is over where a Fence says so, or a wait for a signal that
      the same rank sent to the same receiver after it.
    - Bytes that are read have been written, and no operation overwrites, unread, what another one
      of the same run has written.
    - No Pull and no Reduce reads memory on another node, and a channel has one set of receivers.
    - Nothing moves twice between nodes: not more bytes than ``Schedule.least_between`` says.

    Args:
        what: what all ranks do, one thing after another without any synchronization but the
            schedules' own; a schedule stands for one run of each of its phases in order.
        topology: which ranks share a node.
        initial: memory that has values from the start.
        shared: arenas made with ``shared=True``: all ranks of a node have one memory.
        ranks: looks at these ranks alone, which may not depend on others; None means all.

    Raises:
        ScheduleError: something of the above doesn't hold.
        ValueError: a schedule of another world.
    """
    if isinstance(what, Schedule):
        what = [Run(what, phase) for phase in what.phases]
    runs = [scene for scene in what if isinstance(scene, Run)]
    for run in runs:
        if run.schedule.world != topology.world:
            raise ValueError(
                f"schedule {run.schedule.name!r}: expected a topology of {run.schedule.world} "
                f"ranks, got {topology}"
            )
    players = range(topology.world) if ranks is None else tuple(ranks)
    trace = Trace(what, players, topology, initial, shared)
    moved, least, excess = _moved(runs, players, topology)
    faults = itertools.chain(_unreadable(runs, players, topology), excess, trace.faults())
    if found := list(itertools.islice(faults, MOST_FAULTS)):
        raise ScheduleError(found)
    return Verified(trace.events, moved, least)


def _unreadable(runs: Sequence[Run], ranks: Sequence[int], topology: Topology) -> Iterator[str]:
    for run, rank in itertools.product(_distinct(runs), ranks):
        for op in run.schedule.ops(run.phase, rank):
            sources: tuple[Region, ...] = ()
            if isinstance(op, Pull | Reduce):
                sources = op.sources if isinstance(op, Reduce) else (op.source,)
            for source in sources:
                if topology.node_of(source.rank) != topology.node_of(rank):
                    yield (
                        f"rank {rank}, {run.schedule.name!r} {run.phase}: {op} reads memory of "
                        f"another node; its owner has to put it"
                    )


def _moved(
    runs: Sequence[Run], ranks: Sequence[int], topology: Topology
) -> tuple[Traffic, int, list[str]]:
    """Bytes moved, bytes that must be, and which schedules move more."""
    times = Counter((id(run.schedule), run.phase) for run in runs)
    total, total_least, excess = Traffic(0, 0), 0, []
    for schedule in {id(run.schedule): run.schedule for run in runs}.values():
        moved = Traffic(0, 0)
        for phase in schedule.phases:
            count = times[id(schedule), phase]
            for rank in ranks if count else ():
                own = traffic(schedule, phase, rank, topology)
                moved = Traffic(moved[0] + count * own[0], moved[1] + count * own[1])
        total = Traffic(total[0] + moved[0], total[1] + moved[1])
        if schedule.least_between is not None:
            turns = max(times[id(schedule), phase] for phase in schedule.phases)
            least = turns * sum(schedule.least_between(rank) for rank in ranks)
            total_least += least
            if moved.between > least:
                excess.append(
                    f"{schedule.name!r} moves {moved.between} bytes between nodes where {least} do"
                )
    return total, total_least, excess


def _distinct(runs: Sequence[Run]) -> list[Run]:
    return list({(id(run.schedule), run.phase): run for run in runs}.values())
