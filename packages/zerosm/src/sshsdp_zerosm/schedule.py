"""A communication algorithm as data: for every phase, what each rank does in order."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sshsdp_zerosm.ops import Fence, Op, Pull, Put, Reduce, Signal, Wait, WaitGeneration


@dataclass(frozen=True)
class Schedule:
    """Per phase, the operations of every rank.

    A *channel* is a name. Every rank owns one cumulative 64-bit counter per channel; only the
    owner raises it, and it is never reset, so a stale signal can't be mistaken for a new one.

    Attributes:
        name: for errors and descriptions.
        world: number of ranks.
        phases: phase -> one tuple of operations per rank, in rank order.

    Raises:
        ValueError: an operation that its rank may not do, or that names a rank outside the world.
    """

    name: str
    world: int
    phases: Mapping[str, tuple[tuple[Op, ...], ...]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "phases", MappingProxyType(dict(self.phases)))
        if self.world < 1:
            raise ValueError(f"schedule {self.name!r}: expected world >= 1, got {self.world}")
        for phase, ranks in self.phases.items():
            if len(ranks) != self.world:
                raise ValueError(
                    f"schedule {self.name!r}, phase {phase!r}: expected operations for "
                    f"{self.world} ranks, got {len(ranks)}"
                )
            for rank, ops in enumerate(ranks):
                for op in ops:
                    if fault := _fault(op, rank, self.world):
                        raise ValueError(
                            f"schedule {self.name!r}, phase {phase!r}, rank {rank}, {op}: {fault}"
                        )

    def ops(self, phase: str, rank: int) -> tuple[Op, ...]:
        """What `rank` does in `phase`; ValueError names the phases there are."""
        if phase not in self.phases:
            raise ValueError(
                f"schedule {self.name!r}: expected one of the phases {', '.join(self.phases)}, "
                f"got {phase!r}"
            )
        return self.phases[phase][rank]

    def describe(self, rank: int) -> str:
        """One line per operation of `rank`."""
        lines = [f"schedule {self.name}, rank {rank} of {self.world}"]
        for phase in self.phases:
            lines.append(f"  {phase}")
            lines += [f"    {op}" for op in self.ops(phase, rank)]
        return "\n".join(lines)

    def signature(self) -> str:
        """SHA-256 in hex of all ranks' operations; equal on all ranks that run the same."""
        text = "\n".join(self.describe(rank) for rank in range(self.world))
        return hashlib.sha256(text.encode()).hexdigest()


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
