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
from sshsdp_zerosm.verification.traffic import Traffic, op_traffic

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
    static = _Static(players, topology)
    for run in runs:
        static.add(run)
    trace = Trace(what, players, topology, initial, shared)
    faults = itertools.chain(static.faults, static.excess(), trace.faults())
    if found := list(itertools.islice(faults, MOST_FAULTS)):
        raise ScheduleError(found)
    return Verified(trace.events, static.moved(), static.least())


class _Static:
    """What needs no order of events: who reads whose memory, and what moves."""

    def __init__(self, ranks: Sequence[int], topology: Topology) -> None:
        self.faults: list[str] = []
        self._ranks = ranks
        self._topology = topology
        self._schedules: dict[int, Schedule] = {}
        self._times: Counter[tuple[int, str]] = Counter()
        self._moved: dict[tuple[int, str], Traffic] = {}  # by one run

    def add(self, run: Run) -> None:
        """Look at a run."""
        key = id(run.schedule), run.phase
        self._schedules[id(run.schedule)] = run.schedule
        self._times[key] += 1
        if key not in self._moved:
            self._moved[key] = Traffic.sum(self._of_rank(run, rank) for rank in self._ranks)

    def moved(self) -> Traffic:
        """By all runs."""
        return Traffic.sum(map(self._by_schedule, self._schedules))

    def least(self) -> int:
        """Of those schedules that state it."""
        return sum(self._least(which) or 0 for which in self._schedules)

    def excess(self) -> Iterator[str]:
        """Schedules that move more between nodes than they must."""
        for which, schedule in self._schedules.items():
            moved, least = self._by_schedule(which).between, self._least(which)
            if least is not None and moved > least:
                yield f"{schedule.name!r} moves {moved} bytes between nodes where {least} do"

    def _of_rank(self, run: Run, rank: int) -> Traffic:
        ops = run.schedule.ops(run.phase, rank)
        for op in ops:
            if isinstance(op, Pull | Reduce) and op_traffic(op, rank, self._topology).between:
                self.faults.append(
                    f"rank {rank}, {run.schedule.name!r} {run.phase}: {op} reads memory of another "
                    f"node; its owner has to put it"
                )
        return Traffic.sum(op_traffic(op, rank, self._topology) for op in ops)

    def _by_schedule(self, which: int) -> Traffic:
        return Traffic.sum(
            Traffic(self._times[key] * moved.within, self._times[key] * moved.between)
            for key, moved in self._moved.items()
            if key[0] == which
        )

    def _least(self, which: int) -> int | None:
        schedule = self._schedules[which]
        if schedule.least_between is None:
            return None
        turns = max(self._times[which, phase] for phase in schedule.phases)
        return turns * sum(map(schedule.least_between, self._ranks))
