"""What ranks do one after another, as far as communication sees it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sshsdp_zerosm.ops import Op, Pull, Put, Reduce
from sshsdp_zerosm.region import Region
from sshsdp_zerosm.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Run:
    """Every rank runs a phase of a schedule.

    Attributes:
        schedule: what is run.
        phase: one of its phases.
        accumulate: as for ``Program.run``.
    """

    schedule: Schedule
    phase: str
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """Owners touch their own memory: they compute, fill buffers, consume results.

    Attributes:
        reads: regions that their owners read.
        writes: regions that their owners write.
    """

    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()


@dataclass(frozen=True, slots=True)
class Idle:
    """Every rank calls ``Transport.idle`` (or ``barrier``)."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Every rank calls ``Transport.publish``."""


@dataclass(frozen=True, slots=True)
class Met:
    """The second half of Idle: all ranks have called it."""


Scene: TypeAlias = Run | Use | Idle | Publish


@dataclass(eq=False, slots=True)
class Event:
    """One thing that one rank does.

    Attributes:
        rank: who.
        scene: number of the scene.
        what: the operation, or the scene itself.
        where: for messages.
        reads: memory it reads.
        writes: memory it writes.
    """

    rank: int
    scene: int
    what: Op | Use | Idle | Met | Publish
    where: str
    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()

    def __str__(self) -> str:
        if isinstance(self.what, Use):
            return f"rank {self.rank}, {self.where}"
        return f"rank {self.rank}, {self.where}: {self.what}"


def events_of(scenes: Sequence[Scene], rank: int) -> Iterator[Event]:
    """Everything that `rank` does, in order."""
    expanded: dict[tuple[int, str], tuple[Op, ...]] = {}
    for number, scene in enumerate(scenes):
        match scene:
            case Run():
                where = f"{scene.schedule.name!r} {scene.phase}"
                key = id(scene.schedule), scene.phase
                if key not in expanded:
                    expanded[key] = scene.schedule.ops(scene.phase, rank)
                for op in expanded[key]:
                    yield _event(rank, number, op, where, scene.accumulate)
            case Use():
                reads = tuple(region for region in scene.reads if region.rank == rank)
                writes = tuple(region for region in scene.writes if region.rank == rank)
                if reads or writes:
                    yield Event(rank, number, scene, f"use {number}", reads, writes)
            case Idle():
                yield Event(rank, number, scene, f"scene {number}")
                yield Event(rank, number, Met(), f"scene {number}")
            case Publish():
                yield Event(rank, number, scene, f"scene {number}")


def _event(rank: int, number: int, op: Op, where: str, accumulate: bool) -> Event:
    match op:
        case Put() | Pull():
            return Event(rank, number, op, where, (op.source,), (op.target,))
        case Reduce():
            reads = op.sources
            if accumulate and not op.overwrite and op.target not in reads:
                reads = (*reads, op.target)
            return Event(rank, number, op, where, reads, (op.target,))
        case _:
            return Event(rank, number, op, where)
