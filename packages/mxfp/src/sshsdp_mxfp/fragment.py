"""Which part of a logical tensor a process holds, and which blocks of it. Integers only."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from sshsdp_mxfp.formats import Format
from sshsdp_mxfp.geometry import Rectangle


@dataclass(frozen=True)
class Fragment:
    """Elements [start, stop) of a logical tensor in row-major order.

    The rows of a tensor's grid of scales are called bands, counted through all of its matrices.

    Attributes:
        shape: of the logical tensor.
        start: first element.
        stop: one after the last; equal to `start` where nothing is held.
        format: how the whole is quantized.
    """

    shape: tuple[int, ...]
    start: int
    stop: int
    format: Format

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        self.format.check(self.shape)
        if not 0 <= self.start <= self.stop <= prod(self.shape):
            raise ValueError(
                f"expected a range inside the {prod(self.shape)} elements of {list(self.shape)}, "
                f"got {self.start}:{self.stop}"
            )
        shared = self.format.element.per_byte
        if any(place % shared for place in (self.start, self.stop, self.shape[-1])):
            raise ValueError(
                f"expected fragments of whole bytes, so multiples of {shared} elements, for "
                f"{self.format.element}; got {self.start}:{self.stop} of {list(self.shape)}"
            )

    @property
    def numel(self) -> int:
        """Elements held."""
        return self.stop - self.start

    @property
    def bands(self) -> range:
        """Rows of the grid of scales that have a block with an element of the fragment."""
        if not self.numel:
            return range(0)
        return range(self._band(self.start), self._band(self.stop - 1) + 1)

    @property
    def cut_bands(self) -> tuple[int, ...]:
        """The bands, at most two, of which others hold elements: what has to be combined."""
        ends = {self.bands[0], self.bands[-1]} if self.numel else set()
        return tuple(band for band in sorted(ends) if not self._whole(band))

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Shape of the maxima and of the scales of `bands`: [bands, blocks per row]."""
        return len(self.bands), -(-self.shape[-1] // self.format.columns)

    @cached_property
    def _matrix(self) -> tuple[int, int, int]:
        """Rows, columns and bands of one matrix."""
        rows = self.shape[-2] if len(self.shape) > 1 else 1
        return rows, self.shape[-1], -(-rows // self.format.rows)

    def _band(self, element: int) -> int:
        rows, columns, bands = self._matrix
        matrix, row = divmod(element // columns, rows)
        return matrix * bands + row // self.format.rows

    def _whole(self, band: int) -> bool:
        rows, columns, bands = self._matrix
        matrix, row = divmod(band, bands)
        first = matrix * rows + row * self.format.rows
        last = min(first + self.format.rows, (matrix + 1) * rows)
        return self.start <= first * columns and last * columns <= self.stop

    def rectangles(self) -> Iterator[tuple[int, int, Rectangle]]:
        """At most three rectangles of every matrix that the fragment touches.

        Yields:
            Rows before the matrix, bands before the matrix, the rectangle inside the matrix.
        """
        rows, columns, bands = self._matrix
        place = self.start
        while place < self.stop:
            matrix, row = divmod(place // columns, rows)
            column = place % columns
            end = min(self.stop, (matrix + 1) * rows * columns)
            height = 1 if column else (end - place) // columns
            if height and not column:
                width = columns
            else:
                height, width = 1, min(columns - column, end - place)
            yield (
                matrix * rows,
                matrix * bands,
                Rectangle(row, row + height, column, column + width),
            )
            place += height * width
