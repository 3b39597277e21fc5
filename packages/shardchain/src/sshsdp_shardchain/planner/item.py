"""What the planner moves around: a member, or a pack as one."""

from dataclasses import dataclass
from typing import NamedTuple

from .cost import elements_outside

_BORDERS = 4  # of a tensor that are worth a gap


class Shape(NamedTuple):
    """What matters of a member: all but its name, so that equal layers are planned once.

    Args:
        numel: elements.
        unit: elements that are worked on together, from 1 to ``numel`` (1 if that is 0).
        bytes_per_element: that travel for each element outside the largest part of its unit.
    """

    numel: int
    unit: int
    bytes_per_element: int


@dataclass(frozen=True, slots=True)
class Item:
    """Tensors placed as one, with the numbers that the search asks for again and again.

    Args:
        index: its place by name.
        shapes: of one member, or of those of a pack.
        numel: elements of all.
        size: ``numel`` rounded up to the alignment: what it takes from the list.
        unit: the largest unit; 1 may be cut anywhere at no cost.
    """

    index: int
    shapes: tuple[Shape, ...]
    numel: int
    size: int
    unit: int

    @classmethod
    def of(cls, index: int, shapes: tuple[Shape, ...], align: int) -> "Item":
        """The item with its sums."""
        numel = sum(shape.numel for shape in shapes)
        unit = max(shape.unit for shape in shapes)
        return cls(index, shapes, numel, -(-numel // align) * align, unit)

    def cost(self, start: int, chunk: int) -> int:
        """Bytes that travel when it starts here and the list is cut at multiples of ``chunk``."""
        cost = 0
        for numel, unit, bytes_per_element in self.shapes:
            cost += elements_outside(start, numel, unit, chunk) * bytes_per_element
            start += numel
        return cost

    def least_cost(self, chunk: int) -> int:
        """Bytes that travel wherever it starts: of its units that are larger than a chunk."""
        cost = 0
        for numel, unit, bytes_per_element in self.shapes:
            whole, rest = divmod(numel, unit)
            outside = whole * max(unit - chunk, 0) + max(rest - chunk, 0)
            cost += outside * bytes_per_element
        return cost

    def gaps(self, start: int, chunk: int) -> set[int]:
        """By how much it may be moved on so that a border falls between two of its units.

        One gap for each of the first borders in each tensor, and one to the next border.
        """
        gaps = {chunk - start % chunk}
        for numel, unit, _ in self.shapes:
            border = start - start % chunk + chunk
            stop = min(start + numel, border + _BORDERS * chunk)
            gaps.update((at - start) % unit for at in range(border, stop, chunk))
            start += numel
        return gaps - {0}
