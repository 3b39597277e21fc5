"""What every layout of scales offers: a plan in integers, and views of storage."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from sshsdp_mxfp.layouts.formulas import Index
from sshsdp_mxfp.layouts.sizes import banded, check_sizes


@dataclass(frozen=True)
class ScaleLayout(ABC):
    """How the scales of one kernel operand lie in memory.

    Storage is flat, a number of *cells* of one scale each, padding included. The *operand* is the
    tensor that a kernel takes: a view of that storage with the dtype, shape and strides it expects.
    A layout is a plan: it needs sizes, no tensors.
    """

    @property
    @abstractmethod
    def parts(self) -> tuple["LayoutPart", ...]:
        """The matrices of scales that lie in the storage, in order, without gaps."""

    @property
    @abstractmethod
    def logical_shape(self) -> tuple[int, ...]:
        """Shape of the scales where nothing is packed or padded."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of the operand."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Of the operand."""

    @property
    @abstractmethod
    def stride(self) -> tuple[int, ...]:
        """Of the operand, in its elements."""

    @property
    @abstractmethod
    def cell(self) -> torch.dtype:
        """What holds one scale: uint8 (an E8M0 code) or float32."""

    @property
    @abstractmethod
    def alignment(self) -> int:
        """What the kernel asks of the operand's address, in bytes."""

    @abstractmethod
    def split(self, scales: Tensor, band: int = 1) -> tuple[Tensor, ...]:
        """One matrix per part, as views.

        Args:
            scales: of the logical shape, with rows divided by the band (rounded up).
            band: rows that share one row of `scales`.

        Raises:
            ValueError: for another shape.
        """

    @property
    def cells(self) -> int:
        """Length of the storage."""
        return sum(part.matrix.cells for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Size of the storage in bytes."""
        return self.cells * self.cell.itemsize

    @property
    def padding(self) -> int:
        """Cells that hold no scale."""
        return self.cells - prod(self.logical_shape)

    @property
    def fill(self) -> float:
        """What padding holds: a power of two, so that no kernel meets a NaN or refuses it.

        Code 0 (2^-127) in bytes, 1.0 in floats.
        """
        return 1.0 if self.cell == torch.float32 else 0

    def allocate(self, device: torch.device | str = "cpu") -> Tensor:
        """An operand of its own, in which every cell has the legal value of padding."""
        storage = torch.full((self.cells,), self.fill, dtype=self.cell, device=device)
        return self.operand(storage)

    def operand(self, storage: Tensor) -> Tensor:
        """The view of storage that a kernel takes.

        Args:
            storage: 1-D and contiguous, `nbytes` long, of uint8 or of `cell`; e.g. a slice of a
                larger buffer.

        Raises:
            ValueError: for another dtype, size or strides, or an offset that is not aligned.
        """
        if storage.dtype not in (torch.uint8, self.cell):
            raise ValueError(f"expected storage of uint8 or {self.cell}, got {storage.dtype}")
        expected = self.nbytes // storage.element_size()
        if storage.dim() != 1 or storage.numel() != expected or not storage.is_contiguous():
            raise ValueError(
                f"expected contiguous storage of shape [{expected}], got shape "
                f"{list(storage.shape)} with strides {storage.stride()}; cut it to size"
            )
        offset = storage.storage_offset() * storage.element_size()
        if self.cells and offset % self.alignment:
            raise ValueError(
                f"expected storage at a multiple of {self.alignment} bytes, got byte {offset} of "
                f"its buffer; align its place there"
            )
        return storage.view(self.dtype).as_strided(self.shape, self.stride)

    def check(self, operand: Tensor) -> None:
        """Refuse a tensor that a kernel would misread.

        Raises:
            ValueError: for another dtype or shape, or for other strides, as ``.contiguous()`` and
                ``.clone()`` leave them.
        """
        if operand.dtype != self.dtype or tuple(operand.shape) != self.shape:
            raise ValueError(
                f"expected an operand of {self.dtype} and shape {list(self.shape)}, "
                f"got {operand.dtype} and {list(operand.shape)}"
            )
        if operand.numel() and operand.stride() != self.stride:
            raise ValueError(
                f"expected strides {self.stride}, got {operand.stride()}: .contiguous() and "
                f".clone() destroy this layout; copy layout.storage(operand) instead and view the "
                f"copy by layout.operand"
            )

    def storage(self, operand: Tensor) -> Tensor:
        """The cells of an operand, padding included: what to copy or to send.

        Returns:
            A 1-D view of dtype `cell`.

        Raises:
            ValueError: if the operand has other strides, or no room for its padding.
        """
        self.check(operand)
        length = self.nbytes // operand.element_size()
        room = operand.untyped_storage().nbytes() // operand.element_size()
        if operand.storage_offset() + length > room:
            raise ValueError(
                f"expected memory for {length} elements of {self.dtype} including padding, "
                f"got {room - operand.storage_offset()}; make operands by layout.allocate"
            )
        return operand.as_strided((length,), (1,)).view(self.cell)

    def describe(self) -> str:
        """One line: the operand, its bytes, and how many of its cells are padding."""
        name = str(self.dtype).removeprefix("torch.")
        return (
            f"{type(self).__name__} of {list(self.logical_shape)} scales: {name} "
            f"{list(self.shape)}, strides {self.stride}, {self.nbytes} bytes at multiples of "
            f"{self.alignment}, {self.padding} of {self.cells} cells padding"
        )

    def _check_logical(self, scales: Tensor, band: int) -> None:
        expected = banded(self.logical_shape, band)
        if tuple(scales.shape) != expected:
            raise ValueError(f"expected scales of shape {list(expected)}, got {list(scales.shape)}")


@dataclass(frozen=True)
class MatrixLayout(ScaleLayout):
    """The layout of one matrix of scales.

    Attributes:
        rows: along M or N, one scale each.
        blocks: along K.
    """

    rows: int
    blocks: int

    def __post_init__(self) -> None:
        check_sizes(rows=self.rows, blocks=self.blocks)

    @abstractmethod
    def offset(self, row: Index, block: Index) -> Index:
        """The cell that holds a scale; rows and blocks broadcast."""

    @abstractmethod
    def position(self, cell: Index) -> tuple[Index, Index]:
        """The row and block of a cell; beyond the matrix's sizes for padding."""

    @property
    @abstractmethod
    def cells(self) -> int:
        """Length of the storage."""

    @property
    def run(self) -> int:
        """Cells, from any multiple of it on, that hold consecutive blocks of one row."""
        return 1

    @property
    def parts(self) -> tuple["LayoutPart", ...]:
        """The matrix itself."""
        return (LayoutPart(0, self),)

    @property
    def logical_shape(self) -> tuple[int, ...]:
        """[rows, blocks]."""
        return self.rows, self.blocks

    @property
    def stacked_shape(self) -> tuple[int, ...]:
        """Shape of one operand in a stack of them."""
        return self.shape

    def split(self, scales: Tensor, band: int = 1) -> tuple[Tensor, ...]:
        """The scales themselves."""
        self._check_logical(scales, band)
        return (scales,)


@dataclass(frozen=True)
class LayoutPart:
    """A matrix of scales in storage that may hold several.

    Attributes:
        start: its first cell.
        matrix: its layout, relative to that cell.
    """

    start: int
    matrix: MatrixLayout


def in_sequence(matrices: Sequence[MatrixLayout]) -> tuple[LayoutPart, ...]:
    """Matrices one behind the other."""
    parts, start = [], 0
    for matrix in matrices:
        parts.append(LayoutPart(start, matrix))
        start += matrix.cells
    return tuple(parts)
