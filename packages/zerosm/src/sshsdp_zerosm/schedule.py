"""A communication algorithm as data: for every phase, what each rank does in order."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from sshsdp_zerosm.ops import Fence, Op, Pull, Put, Reduce, Signal, Wait, WaitGeneration

RankOps: TypeAlias = Sequence[Sequence[Op]] | Callable[[int], Sequence[Op]]
"""Operations per rank: all of them in rank order, or a function of the rank."""


@dataclass(frozen=True)
class Schedule:
    """Per phase, the operations of every rank.

    A phase is either a sequence with every rank's operations, checked at once, or a function of the
    rank, which is called, and its result checked, whenever `ops` asks: one rank's part of a world
    of any size costs that part only.

    A *channel* is a name. Every rank owns one cumulative 64-bit counter per channel; only the
    owner raises it, and it is never reset, so a stale signal can't be mistaken for a new one.

    Attributes:
        name: for errors and descriptions.
        world: number of ranks.
        phases: phase -> operations per rank.
        channels: all that any rank signals or waits for, the same on every rank. Those of phases
            given as sequences are found; those of phases given as functions must be stated, and
            may be more than are used.
        least_between: rank -> its share of the bytes that no algorithm can avoid to move between
            nodes in one run of all phases; the shares of all ranks add up. None if not known.
        unordered: phases that a rank may run earlier or later among other programs than its peers
            do, or not at all, also where order matters; they send nothing to another node.

    Raises:
        ValueError: an operation that its rank may not do, that names a rank outside the world, or
            a channel that is not stated.
    """

    name: str
    world: int
    phases: Mapping[str, RankOps]
    channels: tuple[str, ...] = ()
    least_between: Callable[[int], int] | None = None
    unordered: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", MappingProxyType(dict(self.phases)))
        if self.world < 1:
            raise ValueError(f"schedule {self.name!r}: expected world >= 1, got {self.world}")
        channels = dict.fromkeys(self.channels)
        for phase, ranks in self.phases.items():
            if callable(ranks):
                continue
            if len(ranks) != self.world:
                raise ValueError(
                    f"schedule {self.name!r}, phase {phase!r}: expected operations for "
                    f"{self.world} ranks, got {len(ranks)}"
                )
            for rank, ops in enumerate(ranks):
                self._check(phase, rank, ops)
                channels.update(dict.fromkeys(_channels(ops)))
        object.__setattr__(self, "channels", tuple(channels))

    def ops(self, phase: str, rank: int) -> tuple[Op, ...]:
        """What `rank` does in `phase`; ValueError names the phases there are."""
        ops = self.expand(phase, rank)
        if not callable(self.phases[phase]):
            return ops
        self._check(phase, rank, ops)
        known = set(self.channels)
        for channel in _channels(ops):
            if channel not in known:
                raise ValueError(
                    f"schedule {self.name!r}, phase {phase!r}, rank {rank}: expected one of the "
                    f"stated channels {', '.join(self.channels) or '(none)'}, got {channel!r}"
                )
        return ops

    def expand(self, phase: str, rank: int) -> tuple[Op, ...]:
        """The same without looking at the operations: for schedules of schedules, which do."""
        if phase not in self.phases:
            raise ValueError(
                f"schedule {self.name!r}: expected one of the phases {', '.join(self.phases)}, "
                f"got {phase!r}"
            )
        if not 0 <= rank < self.world:
            raise ValueError(
                f"schedule {self.name!r}: expected a rank below {self.world}, got {rank}"
            )
        ranks = self.phases[phase]
        return tuple(ranks(rank) if callable(ranks) else ranks[rank])

    def describe(self, rank: int) -> str:
        """One line per operation of `rank`."""
        lines = [f"schedule {self.name}, rank {rank} of {self.world}"]
        for phase in self.phases:
            lines.append(f"  {phase}")
            lines += [f"    {op}" for op in self.ops(phase, rank)]
        return "\n".join(lines)

    def signature(self, ranks: Iterable[int] | None = None) -> str:
        """SHA-256 in hex of the operations of `ranks`; equal wherever the same ones are asked for.

        Args:
            ranks: None means all, which expands every rank. A plan of a large world names some,
                the same on every rank.
        """
        digest = hashlib.sha256(" ".join(self.channels).encode())
        for rank in range(self.world) if ranks is None else ranks:
            digest.update(f"{self.describe(rank)}\n".encode())
        return digest.hexdigest()

    def _check(self, phase: str, rank: int, ops: Sequence[Op]) -> None:
        for op in ops:
            if fault := _fault(op, rank, self.world):
                raise ValueError(
                    f"schedule {self.name!r}, phase {phase!r}, rank {rank}, {op}: {fault}"
                )


def _channels(ops: Sequence[Op]) -> Iterator[str]:
    return (op.channel for op in ops if isinstance(op, Signal | Wait))


def _fault(op: Op, rank: int, world: int) -> str:
    match op:
        case Put():
            if op.source.rank != rank:
                return f"expected a source of rank {rank}; let its owner put it, or pull"
            named = [op.target.rank]
        case Fence():
            if op.source.rank != rank:
                return f"expected a source of rank {rank}; its owner put it"
            named = []
        case Pull():
            if op.target.rank != rank:
                return f"expected a target of rank {rank}; let its owner pull it, or put"
            named = [op.source.rank]
        case Reduce():
            if op.target.rank != rank:
                return f"expected a target of rank {rank}; its owner reduces into it"
            named = [source.rank for source in op.sources]
        case Signal():
            named = list(op.to)
            if len(set(named)) != len(named) or rank in named:
                return "expected each other rank at most once in `to`"
        case Wait() | WaitGeneration():
            named = [op.source]
            if op.source == rank:
                return "expected another rank to wait for"
    outside = [peer for peer in named if not 0 <= peer < world]
    return f"expected ranks below {world}, got {outside}" if outside else ""
