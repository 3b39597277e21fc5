"""The ranks that take part in a schedule, and the memory that each brings."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from sshsdp_zerosm.ops import Op
from sshsdp_zerosm.region import Region
from sshsdp_zerosm.schedule import Schedule

Regions: TypeAlias = Sequence[Region] | Callable[[int], Region]
"""One region per member: in group order, or a function of the member's rank."""


@dataclass(frozen=True)
class Group:
    """Distinct ranks of a world; their order is the order of buffers and of summation.

    Raises:
        ValueError: an empty group, a rank twice, or one outside the world.
    """

    ranks: tuple[int, ...]
    world: int

    def __post_init__(self) -> None:
        legal = self.ranks and len(set(self.ranks)) == len(self.ranks)
        if not legal or min(self.ranks) < 0 or max(self.ranks) >= self.world:
            raise ValueError(
                f"expected one or more distinct ranks below {self.world}, got group {self.ranks}"
            )

    @cached_property
    def index(self) -> Mapping[int, int]:
        """Rank -> place in the group."""
        return {rank: place for place, rank in enumerate(self.ranks)}

    def others(self, rank: int) -> tuple[int, ...]:
        """All members but `rank`, starting after it and wrapping around.

        The rotation spreads the members' copies over the owners instead of all starting at one.
        """
        at = self.index[rank]
        return self.ranks[at + 1 :] + self.ranks[:at]

    def owned(self, what: str, regions: Regions) -> "Owned":
        """The members' regions; ValueError unless ``regions[i]`` is memory of member i."""
        return Owned(what, regions, self)

    def schedule(
        self,
        name: str,
        phases: Mapping[str, Callable[[int, int], Sequence[Op]]],
        channels: Sequence[str] = (),
        least_between: Callable[[int], int] | None = None,
    ) -> Schedule:
        """``phases[name](place, rank)`` for members, nothing for all others.

        Args:
            name: of the schedule.
            phases: name -> operations of a member.
            channels: see Schedule.
            least_between: place -> share of a member; see Schedule.
        """

        def expanded(ops: Callable[[int, int], Sequence[Op]]) -> Callable[[int], Sequence[Op]]:
            return lambda rank: ops(self.index[rank], rank) if rank in self.index else ()

        def share(rank: int) -> int:
            assert least_between is not None
            return least_between(self.index[rank]) if rank in self.index else 0

        return Schedule(
            name,
            self.world,
            {phase: expanded(ops) for phase, ops in phases.items()},
            tuple(channels),
            None if least_between is None else share,
        )


class Owned:
    """One region per member. Given as a function, a region is made and checked at its first use."""

    def __init__(self, what: str, regions: Regions, group: Group) -> None:
        self._what = what
        self._regions = regions
        self._group = group
        self._made: dict[int, Region] = {}  # chunks of one region ask for it many times
        if not callable(regions):
            owners = tuple(region.rank for region in regions)
            if owners != group.ranks:
                raise ValueError(
                    f"expected {what}[i] to belong to the i-th rank of group {group.ranks}, "
                    f"got regions of ranks {owners}"
                )

    @property
    def lazy(self) -> bool:
        """Whether regions are made when they are used."""
        return callable(self._regions)

    def __getitem__(self, place: int) -> Region:
        if not callable(self._regions):
            return self._regions[place]
        region = self._made.get(place)
        if region is None:
            rank = self._group.ranks[place]
            region = self._made[place] = self._regions(rank)
            if region.rank != rank:
                raise ValueError(f"expected {self._what} of rank {rank}, got {region}")
        return region

    def all(self) -> list[Region]:
        """All members' regions in group order."""
        return [self[place] for place in range(len(self._group.ranks))]


def check_gather(shards: Owned, outputs: Owned) -> None:
    """ValueError unless the shards fill every output; not looked at where they are functions."""
    if not (shards.lazy or outputs.lazy):
        lengths = [shard.nbytes for shard in shards.all()]
        for output in outputs.all():
            gather_parts(lengths, output)


def gather_parts(lengths: Sequence[int], output: Region) -> list[Region]:
    """Where shards of these bytes land in `output`; ValueError unless they fill it exactly."""
    total = sum(lengths)
    if output.nbytes != total:
        raise ValueError(
            f"expected an output of {total} bytes, the sum of the shards, got {output}"
        )
    starts = itertools.accumulate(lengths, initial=0)
    return [output.part(start, nbytes) for start, nbytes in zip(starts, lengths, strict=False)]
