"""Writes scales into operands: whole ones, or rectangles of several parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sshsdp_mxfp.layouts.codes import as_cells, to_cells
from sshsdp_mxfp.layouts.layout import ScaleLayout
from sshsdp_mxfp.layouts.tiles import tiles


@dataclass(frozen=True, eq=False, slots=True)
class ScaleWrite:
    """Scales of one parameter, and the rectangle of an operand that they fill.

    Attributes:
        scales: a matrix [ceil(rows / band), blocks] of uint8 or float8_e8m0fnu codes, or of
            float32 where the layout has floats; any strides, so that a transposed grid is `.t()`.
        layout: of the operand.
        operand: what is written to; cells outside of the rectangle keep their values.
        row: the first row of the rectangle.
        block: its first block.
        part: which matrix of a stacked or grouped layout.
        band: rows that share one row of `scales`: 32 for a grid of 32x32 blocks, else 1.
        rows: of the rectangle, needed where the last band is cut before the operand ends; default
            is all of `scales`, or what is left of the operand if that cuts only the last band.
    """

    scales: Tensor
    layout: ScaleLayout
    operand: Tensor
    row: int = 0
    block: int = 0
    part: int = 0
    band: int = 1
    rows: int | None = None


def write_scales(writes: Sequence[ScaleWrite]) -> None:
    """Perform writes, in order; several parameters may share an operand, and many do one call.

    All are checked before the first one begins.

    Raises:
        ValueError: for a rectangle beyond the operand, scales of another shape or dtype, an
            operand whose strides are not the layout's, or tensors on different devices.
    """
    ready = [_Rectangle(write) for write in writes]
    for rectangle in ready:
        rectangle.write()


def pack_scales(
    scales: Tensor | Sequence[Tensor],
    layout: ScaleLayout,
    *,
    band: int = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Lay scales out for a kernel, padding included.

    A 32x32 grid [N / 32, K / 32] of a weight [N, K] serves both directions: with band=32, the
    operand of the forward pass has a layout of N rows and K / 32 blocks and takes the grid, that of
    dgrad has K rows and N / 32 blocks and takes ``grid.t()``.

    Args:
        scales: of the layout's logical shape with rows divided by the band (rounded up), or one
            matrix for each of its parts; dtypes and strides as in ScaleWrite.
        layout: of the result.
        band: rows that share one row of `scales`.
        out: the operand to fill, all of its storage; default is a new one.

    Returns:
        The operand.

    Raises:
        ValueError: as write_scales does.
    """
    matrices = layout.split(scales, band) if isinstance(scales, Tensor) else tuple(scales)
    if len(matrices) != len(layout.parts):
        raise ValueError(f"expected {len(layout.parts)} matrices of scales, got {len(matrices)}")
    if out is None:
        some = scales if isinstance(scales, Tensor) else next(iter(scales), torch.empty(0))
        operand = layout.allocate(some.device)
    else:
        operand = out
    ready = [
        _Rectangle(ScaleWrite(matrix, layout, operand, part=part, band=band, rows=here.matrix.rows))
        for part, (matrix, here) in enumerate(zip(matrices, layout.parts, strict=True))
    ]
    for rectangle in ready:
        rectangle.check_whole()
    if out is not None:
        layout.storage(out).fill_(layout.fill)
    for rectangle in ready:
        rectangle.write()
    return operand


class _Rectangle:
    """A write that was found good."""

    def __init__(self, write: ScaleWrite) -> None:
        layout, parts = write.layout, write.layout.parts
        if write.band < 1:
            raise ValueError(f"expected a band of at least 1 row, got {write.band}")
        if not 0 <= write.part < len(parts):
            raise ValueError(f"expected a part below {len(parts)}, got {write.part}")
        if write.scales.dim() != 2:
            raise ValueError(f"expected a matrix of scales, got shape {list(write.scales.shape)}")
        if write.scales.device != write.operand.device:
            raise ValueError(
                f"expected scales on {write.operand.device} where the operand is, "
                f"got {write.scales.device}"
            )
        part = parts[write.part]
        self._cells = layout.storage(write.operand)[part.start : part.start + part.matrix.cells]
        self._matrix, self._cell = part.matrix, layout.cell
        self._scales = as_cells(write.scales, layout.cell)
        self._row, self._block, self._band = write.row, write.block, write.band
        self._rows = self._count_rows(write)
        self._blocks = int(write.scales.shape[1])
        self._check_bounds()

    def _count_rows(self, write: ScaleWrite) -> int:
        """Rows of the rectangle, such that all of `scales` is used and its last band not empty."""
        bands = int(write.scales.shape[0])
        rows = write.rows
        if rows is None:
            full, room = bands * self._band, self._matrix.rows - write.row
            rows = room if full - self._band < room < full else full
        if -(-rows // self._band) != bands:
            raise ValueError(
                f"expected {-(-rows // self._band)} rows of scales for {rows} rows of the operand "
                f"in bands of {self._band}, got {bands}"
            )
        return rows

    def _check_bounds(self) -> None:
        bottom, right = self._row + self._rows, self._block + self._blocks
        matrix = self._matrix
        inside = self._row >= 0 and self._block >= 0
        if not inside or bottom > matrix.rows or right > matrix.blocks:
            raise ValueError(
                f"expected a rectangle inside of {matrix.rows} rows and {matrix.blocks} blocks, "
                f"got rows {self._row} to {bottom} and blocks {self._block} to {right}"
            )

    def check_whole(self) -> None:
        """Refuse scales with fewer blocks than the matrix has."""
        if self._blocks != self._matrix.blocks:
            raise ValueError(
                f"expected scales of {self._matrix.blocks} blocks, got {self._blocks}; write a "
                f"part of an operand by write_scales"
            )

    def write(self) -> None:
        device = self._scales.device
        for rows, blocks in tiles(self._rows, self._blocks):
            row = torch.arange(rows.start, rows.stop, device=device)
            block = torch.arange(blocks.start, blocks.stop, device=device)
            # Converted before rows repeat.
            first, last = rows[0] // self._band, rows[-1] // self._band
            bands = self._scales[first : last + 1, blocks.start : blocks.stop]
            bands = to_cells(bands, self._cell)
            values = bands.index_select(0, row // self._band - first)
            cells = self._matrix.offset((row + self._row).unsqueeze(1), block + self._block)
            self._cells.scatter_(0, cells.flatten(), values.flatten())
