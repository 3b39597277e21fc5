"""Writes scales into operands: whole ones, or rectangles of several parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sshsdp_mxfp.layouts.codes import as_cells, to_cells
from sshsdp_mxfp.layouts.layout import ScaleLayout
from sshsdp_mxfp.layouts.span import SpanPart, fill_parts
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

    All are checked before the first one begins. On CUDA devices those of one layout are one launch,
    and have no order: where rectangles overlap, either's scales stay.

    Raises:
        ValueError: for a rectangle beyond the operand, scales of another shape or dtype, an
            operand whose strides are not the layout's, or tensors on different devices.
    """
    ready = [CheckedWrite(write) for write in writes]
    if any(rectangle.cells.is_cuda for rectangle in ready):
        from sshsdp_mxfp.kernels.relayout import prepare_writes  # it needs this module

        for launch in prepare_writes(ready, direct=True):
            launch.run()
        return
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
        TypeError: for something else than scales.
    """
    if not isinstance(scales, Tensor | Sequence):
        raise TypeError(
            f"expected scales, a tensor or several, got {type(scales).__name__}; of an MXTensor "
            f"give the .scale"
        )
    matrices = layout.split(scales, band) if isinstance(scales, Tensor) else tuple(scales)
    if len(matrices) != len(layout.parts):
        raise ValueError(f"expected {len(layout.parts)} matrices of scales, got {len(matrices)}")
    if out is None:
        some = scales if isinstance(scales, Tensor) else next(iter(scales), torch.empty(0))
        storage = torch.empty(layout.cells, dtype=layout.cell, device=some.device)
        operand = layout.operand(storage)
    else:
        operand = out
    ready = [
        CheckedWrite(ScaleWrite(each, layout, operand, 0, 0, part, band, here.matrix.rows))
        for part, (each, here) in enumerate(zip(matrices, layout.parts, strict=True))
    ]
    for rectangle in ready:
        rectangle.check_whole()
    if operand.is_cuda:
        fill_parts([SpanPart(each.cells, each.scales, each.matrix, 0, band) for each in ready])
        return operand
    layout.storage(operand).fill_(layout.fill)
    for rectangle in ready:
        rectangle.write()
    return operand


class CheckedWrite:
    """A write that was found good.

    Attributes:
        cells: storage of the matrix that is written to.
        matrix: its layout.
        scales: codes, or floats.
        row: as of ScaleWrite; likewise `block` and `band`.
        rows: of the rectangle.
        blocks: of the rectangle.
    """

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
        self.cells = layout.storage(write.operand).narrow(0, part.start, part.matrix.cells)
        self.matrix, self.cell = part.matrix, layout.cell
        self.scales = as_cells(write.scales, layout.cell)
        self.row, self.block, self.band = write.row, write.block, write.band
        self.rows = self._count_rows(write)
        self.blocks = int(write.scales.shape[1])
        self._check_bounds()

    def _count_rows(self, write: ScaleWrite) -> int:
        """Rows of the rectangle, such that all of `scales` is used and its last band not empty."""
        bands = int(write.scales.shape[0])
        rows = write.rows
        if rows is None:
            full, room = bands * self.band, self.matrix.rows - write.row
            rows = room if full - self.band < room < full else full
        if -(-rows // self.band) != bands:
            raise ValueError(
                f"expected {-(-rows // self.band)} rows of scales for {rows} rows of the operand "
                f"in bands of {self.band}, got {bands}"
            )
        return rows

    def _check_bounds(self) -> None:
        bottom, right = self.row + self.rows, self.block + self.blocks
        matrix = self.matrix
        inside = self.row >= 0 and self.block >= 0
        if not inside or bottom > matrix.rows or right > matrix.blocks:
            raise ValueError(
                f"expected a rectangle inside of {matrix.rows} rows and {matrix.blocks} blocks, "
                f"got rows {self.row} to {bottom} and blocks {self.block} to {right}"
            )

    def check_whole(self) -> None:
        """Refuse scales with fewer blocks than the matrix has."""
        if self.blocks != self.matrix.blocks:
            raise ValueError(
                f"expected scales of {self.matrix.blocks} blocks, got {self.blocks}; write a "
                f"part of an operand by write_scales"
            )

    def write(self) -> None:
        """Perform it, chunk by chunk."""
        device = self.scales.device
        for rows, blocks in tiles(self.rows, self.blocks):
            row = torch.arange(rows.start, rows.stop, device=device)
            block = torch.arange(blocks.start, blocks.stop, device=device)
            # Converted before rows repeat.
            first, last = rows[0] // self.band, rows[-1] // self.band
            bands = self.scales[first : last + 1, blocks.start : blocks.stop]
            bands = to_cells(bands, self.cell)
            values = bands.index_select(0, row // self.band - first)
            cells = self.matrix.offset((row + self.row).unsqueeze(1), block + self.block)
            self.cells.scatter_(0, cells.flatten(), values.flatten())
