"""Units: the pieces of a logical tensor that an update works on as a whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from .ranges import Range


@dataclass(frozen=True, slots=True)
class Box:
    """Elements of a unit that lie in regular rows.

    Args:
        element: the first one, flat, relative to the tensor.
        position: of that one within the unit, in unit order.
        count: number of rows.
        length: consecutive elements per row.
        stride: from row to row, in elements of the tensor; in the unit, rows follow one another.
    """

    element: int
    position: int
    count: int
    length: int
    stride: int


@dataclass(frozen=True, slots=True)
class Strip:
    """The elements of one unit: ``count`` runs of ``length`` elements, ``stride`` apart.

    Unit order is the order of the tensor, so what a contiguous range of the tensor holds of a unit
    is a contiguous range of positions in the unit: a holder sends its part in one piece.

    Args:
        start: first element, flat, relative to the tensor.
        length: elements of a run.
        count: number of runs; 1 is a contiguous unit.
        stride: from the start of a run to that of the next, at least ``length``.

    Raises:
        ValueError: runs overlap, or a number is negative.
    """

    start: int
    length: int
    count: int = 1
    stride: int = 0

    def __post_init__(self) -> None:
        if self.start < 0 or self.length < 0 or self.count < 1:
            raise ValueError(
                f"expected start and length from 0 and a count from 1, got {self}; "
                "leave empty units out"
            )
        if self.count > 1 and self.stride < self.length:
            raise ValueError(
                f"expected runs that don't overlap, got {self}; use a stride >= {self.length}"
            )

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.length * self.count

    @property
    def stop(self) -> int:
        """One past the last element, relative to the tensor."""
        return self.start + (self.count - 1) * self.stride + self.length

    def position(self, element: int) -> int:
        """How many elements of the unit come before an element of the tensor."""
        into = element - self.start
        if into <= 0:
            return 0
        if self.count == 1:
            return min(into, self.length)
        runs, rest = divmod(into, self.stride)
        return min(runs * self.length + min(rest, self.length), self.numel)

    def rows(self, length: int) -> "Strip":
        """The same unit as runs of ``length`` elements, in the same order.

        Raises:
            ValueError: the runs of the unit cannot be seen that way.
        """
        if length == self.length:
            return self
        if self.count > 1 or length < 1 or self.length % length:
            raise ValueError(f"expected {self} in runs of {length} elements; use a divisor")
        return Strip(self.start, length, self.length // length, length)

    def boxes(self, part: Range) -> Iterator[Box]:
        """Cut a range of positions into at most three boxes, in order, none of them empty."""
        start = part.start
        while start < part.stop:
            run, into = divmod(start, self.length)
            count = (part.stop - start) // self.length if not into else 0
            length = self.length if count else min(self.length - into, part.stop - start)
            element = self.start + run * self.stride + into
            yield Box(element, start, count or 1, length, self.stride)
            start += (count or 1) * length


@dataclass(frozen=True, slots=True)
class Units:
    """The units of one logical tensor; each of its elements is in exactly one.

    Args:
        numel: elements of the tensor.
        strips: the units, in the order that names and states use.
        contiguous: whether the units are one run each and follow one another.

    Raises:
        ValueError: the units don't have as many elements as the tensor.
    """

    numel: int
    strips: tuple[Strip, ...]
    contiguous: bool

    def __post_init__(self) -> None:
        held = sum(strip.numel for strip in self.strips)
        if held != self.numel:
            raise ValueError(
                f"expected units of {self.numel} elements in all, got {held}; "
                "every element belongs to exactly one unit"
            )

    @classmethod
    def pieces(cls, sizes: Sequence[int]) -> "Units":
        """Contiguous units of these numbers of elements, one after another."""
        starts = accumulate(sizes, initial=0)
        return cls(
            sum(sizes), tuple(Strip(a, size) for a, size in zip(starts, sizes, strict=False)), True
        )

    @classmethod
    def columns(cls, rows: int, widths: Sequence[int], batch: int = 1) -> "Units":
        """Units of neighbouring columns of row-major matrices.

        Args:
            rows: of each matrix.
            widths: columns of each unit; together those of a matrix.
            batch: number of matrices, one behind the other; each is cut alike.
        """
        width = sum(widths)
        numel = batch * rows * width
        if not numel:
            return cls(0, (Strip(0, 0),) * (batch * len(widths)), True)
        starts = list(accumulate(widths, initial=0))[:-1]
        strips = tuple(
            Strip(matrix * rows * width + start, length, rows, width)
            for matrix in range(batch)
            for start, length in zip(starts, widths, strict=True)
        )
        return cls(numel, strips, False)
