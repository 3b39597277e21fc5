"""Matrices of tensors, as kernels see them."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

ALIGNMENT = 16  # bytes of an address, elements of a stride or a size: what 128-bit accesses need
Order = Literal["row", "column", "any"]


@dataclass(frozen=True, eq=False)
class Plane:
    """A matrix in memory.

    Attributes:
        matrix: a view of two dimensions.
        order: what is adjacent: elements of a row, of a column, or neither.
    """

    matrix: Tensor
    order: Order

    @classmethod
    def of(cls, matrix: Tensor) -> "Plane":
        """Find the order of a matrix."""
        if matrix.stride(1) == 1 or matrix.shape[1] == 1:
            return cls(matrix, "row")
        if matrix.stride(0) == 1 or matrix.shape[0] == 1:
            return cls(matrix, "column")
        return cls(matrix, "any")

    @property
    def address(self) -> int:
        """Of the first element."""
        return self.matrix.data_ptr()

    @property
    def strides(self) -> tuple[int, int]:
        """Down and across, in elements."""
        return self.matrix.stride(0), self.matrix.stride(1)

    @property
    def aligned(self) -> bool:
        """Whether every line of adjacent elements begins and ends at a multiple of 16."""
        if self.order == "any":
            return False
        lines, line = (0, 1) if self.order == "row" else (1, 0)
        numbers = self.matrix.stride(lines), self.matrix.shape[line], self.address
        return not any(number % ALIGNMENT for number in numbers)
