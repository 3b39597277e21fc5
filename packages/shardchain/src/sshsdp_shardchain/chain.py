"""The shard chain of one flattened buffer."""

from collections.abc import Iterator
from dataclasses import dataclass

from .cut import Cut
from .degrees import Degrees
from .level import Level
from .ranges import Range


@dataclass(frozen=True, slots=True)
class ShardChain:
    """Which rank holds which elements of a flattened buffer at every level.

    The buffer is cut into ``zero3`` even contiguous chunks, each of them into ``zero2 / zero3``,
    each of those into ``zero1 / zero2``. Ranks are node-major and the coarsest cut is contiguous:
    rank r has chunk ``r % zero3``, in it ``r // zero3 % (zero2 / zero3)``, in that
    ``r // zero2 % (zero1 / zero2)``; ranks that agree in all three are replicas. So gathering
    level by level within ``group`` always appends neighbours, and nothing is ever reordered::

        Degrees(zero3=2, zero2=2, zero1=4), world 4, 16 elements

        FULL   |            0 .. 15            |   ranks 0 1 2 3
        ZERO3  |    0 .. 7     |    8 .. 15    |   ranks 0 2 | 1 3
        ZERO2  |    0 .. 7     |    8 .. 15    |   ranks 0 2 | 1 3
        ZERO1  | 0..3  | 4..7  | 8..11 | 12..15|   ranks 0 | 2 | 1 | 3

    Source: SS-HSDP section 3.2 and Figure 4.

    Args:
        numel: elements of the buffer, padding included; a multiple of ``degrees.zero1``.
        degrees: the three nested degrees.
        world: number of ranks, a multiple of ``degrees.zero1``.

    Raises:
        ValueError: ``numel`` or ``world`` cannot be cut evenly.
    """

    numel: int
    degrees: Degrees
    world: int

    def __post_init__(self) -> None:
        self.degrees.check_world(self.world)
        zero1 = self.degrees.zero1
        if self.numel < 0:
            raise ValueError(
                f"expected a buffer of 0 or more elements, got numel={self.numel}; pass its size"
            )
        if self.numel % zero1:
            raise ValueError(
                f"expected a buffer of a multiple of zero1={zero1} elements, "
                f"got numel={self.numel}; pad it to {-(-self.numel // zero1) * zero1}"
            )

    def range(self, level: Level, rank: int) -> Range:
        """The elements that a rank holds at a level, relative to the list (the whole buffer)."""
        self._check_rank(rank)
        index = 0
        for stride, parts in self.degrees.steps(level):
            index = index * parts + rank // stride % parts
        chunk = self.numel // self.degrees.chunks(level)
        return Range(index * chunk, (index + 1) * chunk)

    def group(self, level: Level, rank: int) -> tuple[int, ...]:
        """The ranks that together hold the chunk of the level above, in buffer order.

        Each of them holds one sibling of ``rank``'s chunk, so an all-gather over the group yields
        ``rank``'s chunk of the level above. ``FULL`` has no level above: ``(rank,)``.
        """
        levels = tuple(Level)
        return self.members(levels[max(levels.index(level) - 1, 0)], level, rank)

    def members(self, outer: Level, inner: Level, rank: int) -> tuple[int, ...]:
        """The ranks that hold the chunks of ``inner`` in ``rank``'s chunk of ``outer``.

        They come in buffer order, from ``rank``'s own replica set, ``rank`` among them: what they
        hold at ``inner``, put one after another, is what ``rank`` holds at ``outer``. So an
        all-gather over them needs no reordering, whatever lies between the two levels.

        Args:
            outer: the coarser level.
            inner: the finer level; equal to ``outer`` it gives ``(rank,)``.
            rank: any rank of the world.

        Raises:
            ValueError: ``outer`` is finer than ``inner``, or there is no such rank.
        """
        self._check_rank(rank)
        steps = self.degrees.steps(inner, above=outer)
        held, replica = self.degrees.chunks(outer), self.degrees.chunks(inner)
        ranks = [rank % held + rank // replica * replica]
        for stride, parts in steps:
            ranks = [member + part * stride for member in ranks for part in range(parts)]
        return tuple(ranks)

    def replicas(self, level: Level, rank: int) -> tuple[int, ...]:
        """The ranks, ascending, that hold the same elements as ``rank`` at a level."""
        self._check_rank(rank)
        chunks = self.degrees.chunks(level)
        return tuple(range(rank % chunks, self.world, chunks))

    def owners(self, level: Level, replica: int = 0) -> tuple[int, ...]:
        """The ranks that hold the chunks of a level, in buffer order.

        Args:
            level: where the buffer is cut.
            replica: which of the ``world / chunks`` sets of ranks that each hold the whole buffer.

        Raises:
            ValueError: there is no such replica.
        """
        return self.members(Level.FULL, level, self._first_owner(level, replica))

    def cuts(
        self, level: Level, replica: int = 0, *, start: int = 0, stop: int | None = None
    ) -> Iterator[Cut]:
        """The chunks of a level with their owners, in buffer order, one at a time.

        Nothing is made for the chunks that aren't asked for, so a picture of 131,072 of them can
        take the first and the last few.

        Args:
            level: where the buffer is cut.
            replica: which of the sets of ranks that each hold the whole buffer.
            start: index of the first chunk wanted.
            stop: one past the index of the last chunk wanted; all that follow by default.

        Raises:
            ValueError: there is no such replica, or there are no such chunks.
        """
        count = self.degrees.chunks(level)
        last = count if stop is None else stop
        if not 0 <= start <= last <= count:
            raise ValueError(
                f"expected chunks of {level} within 0 and {count}, got start={start}, stop={last}; "
                "ask for those that exist"
            )
        first, size = self._first_owner(level, replica), self.numel // count
        steps = tuple(reversed(self.degrees.steps(level)))
        return (
            Cut(index, Range(index * size, (index + 1) * size), first + _owner(index, steps))
            for index in range(start, last)
        )

    def _first_owner(self, level: Level, replica: int) -> int:
        chunks = self.degrees.chunks(level)
        count = self.world // chunks
        if not 0 <= replica < count:
            raise ValueError(
                f"expected a replica of {level} from 0 to {count - 1}, got {replica}; "
                f"{self.world} ranks hold the buffer {count} times at this level"
            )
        return replica * chunks

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.world:
            raise ValueError(
                f"expected a rank from 0 to {self.world - 1}, got {rank}; "
                "use the rank within the group that the chain is cut over"
            )


def _owner(index: int, steps: tuple[tuple[int, int], ...]) -> int:
    """The rank of the first replica set that holds a chunk; the finest step comes first."""
    rank = 0
    for stride, parts in steps:
        index, part = divmod(index, parts)
        rank += part * stride
    return rank
