"""Who holds which part of a unit, who works on it, and what therefore moves."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from .layout import Layout
from .level import Level
from .unit import Strip


@dataclass(frozen=True, slots=True)
class Holding:
    """A contiguous range of a tensor that one rank holds.

    Args:
        rank: the holder.
        start: first element, flat, relative to the tensor.
        stop: one past the last element, flat, relative to the tensor.
    """

    rank: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Part:
    """A contiguous range of a unit that one rank holds.

    Args:
        rank: the holder.
        start: first position, relative to the unit.
        stop: one past the last position, relative to the unit.
    """

    rank: int
    start: int
    stop: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.stop - self.start


class Holders(Protocol):
    """Who holds the members of a list where the optimizer runs, in one set of replicas.

    Ranks 0 to ``width - 1`` hold every element once; rank ``r + k * width`` holds what ``r`` holds.
    """

    @property
    def width(self) -> int:
        """Ranks of one set of replicas."""

    def of(self, name: str) -> Sequence[Holding]:
        """The holders of a member among the first ``width`` ranks: disjoint, by ascending start.

        Together they hold every element; none is empty.
        """


@dataclass(frozen=True, slots=True)
class ChainHolders:
    """The holders at level ZERO1 of a layout.

    Args:
        layout: of the list.
    """

    layout: Layout

    @property
    def width(self) -> int:
        """Ranks of one set of replicas: the degree ``zero1``."""
        return self.layout.chain.degrees.zero1

    def of(self, name: str) -> tuple[Holding, ...]:
        """The holders of a member, by ascending start."""
        placement, chain = self.layout.placement(name), self.layout.chain
        if not placement.numel:
            return ()
        chunk = chain.numel // self.width
        first, last = placement.offset // chunk, -(-placement.stop // chunk)
        steps = chain.degrees.steps(Level.ZERO1)
        return tuple(
            Holding(
                _owner(steps, index),
                max(0, index * chunk - placement.offset),
                min(placement.numel, (index + 1) * chunk - placement.offset),
            )
            for index in range(first, last)
        )


@dataclass(frozen=True, slots=True)
class Exchange:
    """One unit, its holders and the one of them that works on it.

    Args:
        parts: by ascending position; together the whole unit.
        executor: the rank, among the holders, that gets the parts of the others.
    """

    parts: tuple[Part, ...]
    executor: int

    @property
    def incoming(self) -> tuple[Part, ...]:
        """The parts that travel to the executor, and back where the unit was changed."""
        return tuple(part for part in self.parts if part.rank != self.executor)

    @property
    def moved(self) -> int:
        """Elements that travel one way."""
        return sum(part.numel for part in self.parts if part.rank != self.executor)

    @property
    def least(self) -> int:
        """Elements that would travel one way if the largest holder were the executor."""
        return sum(part.numel for part in self.parts) - max(
            (part.numel for part in self.parts), default=0
        )


def parts(strip: Strip, holdings: Sequence[Holding]) -> tuple[Part, ...]:
    """Cut a unit at the borders of its holders.

    Args:
        strip: the unit.
        holdings: of its tensor, as `Holders.of` returns them.

    Returns:
        The parts by ascending position; holders of nothing are left out.
    """
    index = max(0, bisect_right(holdings, strip.start, key=attrgetter("start")) - 1)
    found = []
    start, end = 0, strip.stop
    for holding in holdings[index:]:
        if holding.start >= end:
            break
        stop = strip.position(holding.stop)
        if stop > start:
            found.append(Part(holding.rank, start, stop))
            start = stop
    if start != strip.numel:
        raise ValueError(
            f"expected holders of all {strip.numel} elements of {strip}, got holders of {start}; "
            "pass the holders of the whole tensor"
        )
    return tuple(found)


def exchange(strip: Strip, holdings: Sequence[Holding], executor: int | None = None) -> Exchange:
    """Say who holds a unit, who works on it and what moves.

    Args:
        strip: the unit.
        holdings: of its tensor, as `Holders.of` returns them.
        executor: one of the holders; None takes the one that holds most, of equals the first.

    Raises:
        ValueError: the executor holds nothing of the unit.
    """
    cut = parts(strip, holdings)
    if executor is None and cut:
        executor = max(cut, key=attrgetter("numel")).rank
    if executor not in {part.rank for part in cut}:
        raise ValueError(
            f"expected an executor among the holders {[part.rank for part in cut]} of {strip}, "
            f"got {executor}; use one of them"
        )
    return Exchange(cut, executor)


def _owner(steps: Sequence[tuple[int, int]], index: int) -> int:
    """The rank of the first set of replicas that holds chunk `index` of the buffer."""
    rank = 0
    for stride, parts_ in reversed(steps):
        index, part = divmod(index, parts_)
        rank += part * stride
    return rank
