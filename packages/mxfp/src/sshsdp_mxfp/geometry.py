"""Cuts rectangles of a matrix into parts of equal blocks, small enough for a core's own cache.

Integers only. A rectangle need not begin or end where blocks do: parts at its edges have smaller
blocks. That covers ragged matrices as well as fragments of a matrix.
"""

from collections.abc import Iterator
from dataclasses import dataclass

CHUNK = 1 << 18  # elements: 1 MiB in float32, inside a core's own cache


@dataclass(frozen=True)
class Rectangle:
    """Rows [top, bottom) and columns [left, right) of a matrix."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def height(self) -> int:
        """Rows."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """Columns."""
        return self.right - self.left


@dataclass(frozen=True)
class Part(Rectangle):
    """A rectangle that consists of equal blocks, or of equal pieces of blocks.

    Attributes:
        block: rows and columns that one block has inside the part.
        tiles: the blocks, as a rectangle of the grid of scales.
    """

    block: tuple[int, int]
    tiles: Rectangle


def parts(whole: Rectangle, block: tuple[int, int], grain: int = 1) -> Iterator[Part]:
    """Cut a rectangle into parts of about `CHUNK` elements, or of one block where that is more.

    Args:
        whole: what to cut.
        block: rows and columns of the blocks, which begin at the matrix' first element.
        grain: parts begin at columns that are a multiple of this; `whole` must do so, and either
            the block's columns are a multiple of it, or they are 1.
    """
    rows, columns = block
    for top, bottom, high in _segments(whole.top, whole.bottom, rows):
        for left, right, wide in _segments(whole.left, whole.right, columns):
            step = grain if wide == 1 else wide
            width = min(right - left, max(step, CHUNK // high // step * step))
            height = max(high, CHUNK // width // high * high)
            for y in range(top, bottom, height):
                y_end = min(y + height, bottom)
                for x in range(left, right, width):
                    x_end = min(x + width, right)
                    tiles = Rectangle(
                        y // rows, -(-y_end // rows), x // columns, -(-x_end // columns)
                    )
                    yield Part(y, y_end, x, x_end, (high, wide), tiles)


def _segments(start: int, stop: int, step: int) -> Iterator[tuple[int, int, int]]:
    """Cut a range where multiples of `step` begin and end: (start, stop, size of its pieces)."""
    if start % step and start < stop:
        end = min(stop, -(-start // step) * step)
        yield start, end, end - start
        start = end
    end = stop // step * step
    if start < end:
        yield start, end, step
        start = end
    if start < stop:
        yield start, stop, stop - start
