"""The inverses: scales out of an operand."""

import torch
from torch import Tensor

from sshsdp_mxfp.layouts.codes import as_cells
from sshsdp_mxfp.layouts.layout import MatrixLayout, ScaleLayout
from sshsdp_mxfp.layouts.sizes import banded
from sshsdp_mxfp.layouts.tiles import tiles
from sshsdp_mxfp.tensor import SCALE


def unpack_scales(operand: Tensor, layout: ScaleLayout) -> Tensor:
    """Scales as they were before they were packed.

    Args:
        operand: as the layout describes it.
        layout: of the operand.

    Returns:
        A new tensor of the layout's logical shape: float8_e8m0fnu, or float32 where the layout has
        floats.

    Raises:
        ValueError: if the operand's dtype, shape or strides are not the layout's.
    """
    return _read(operand, layout, 1)


def unpack_grid(operand: Tensor, layout: ScaleLayout, band: int = 32) -> Tensor:
    """The grid that an operand was expanded from.

    Args:
        operand: as the layout describes it.
        layout: of the operand.
        band: rows that share their scales.

    Returns:
        A new tensor of the layout's logical shape with rows divided by the band (rounded up);
        dtypes as of unpack_scales. A dgrad operand gives the transposed grid.

    Raises:
        ValueError: if rows of a band differ; as unpack_scales does.
    """
    grid = _read(operand, layout, band)
    storage = layout.storage(operand)
    matrices = layout.split(as_cells(grid, layout.cell), band)
    for number, (part, matrix) in enumerate(zip(layout.parts, matrices, strict=True)):
        cells = storage.narrow(0, part.start, part.matrix.cells)
        _check_bands(cells, part.matrix, matrix, band, number)
    return grid


def _read(operand: Tensor, layout: ScaleLayout, band: int) -> Tensor:
    """Scales of every band's first row."""
    storage = layout.storage(operand)
    shape = banded(layout.logical_shape, band)
    result = torch.empty(shape, dtype=layout.cell, device=operand.device)
    for part, matrix in zip(layout.parts, layout.split(result, band), strict=True):
        cells = storage.narrow(0, part.start, part.matrix.cells)
        if cells.is_cuda and matrix.numel():
            from sshsdp_mxfp.kernels.relayout import prepare_read  # it needs this module

            prepare_read(cells, part.matrix, matrix, band).run()
            continue
        for rows, blocks in tiles(*matrix.shape):
            values = _gather(cells, part.matrix, rows, blocks, band)
            matrix[rows.start : rows.stop, blocks.start : blocks.stop] = values
    return result.view(SCALE) if layout.cell == torch.uint8 else result


def _gather(cells: Tensor, layout: MatrixLayout, rows: range, blocks: range, band: int) -> Tensor:
    """A rectangle of scales, of every `band`-th row."""
    row = torch.arange(rows.start, rows.stop, device=cells.device) * band
    block = torch.arange(blocks.start, blocks.stop, device=cells.device)
    return cells.take(layout.offset(row.unsqueeze(1), block))


def _check_bands(cells: Tensor, layout: MatrixLayout, grid: Tensor, band: int, number: int) -> None:
    for rows, blocks in tiles(layout.rows, layout.blocks):
        row = torch.arange(rows.start, rows.stop, device=cells.device) // band
        wanted = grid[:, blocks.start : blocks.stop].index_select(0, row)
        wrong = _gather(cells, layout, rows, blocks, 1) != wanted
        if bool(wrong.any()):
            down, right = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"expected equal scales in every band of {band} rows, got row "
                f"{rows[down]}, block {blocks[right]} of matrix {number} unlike its band's first; "
                f"read it by unpack_scales"
            )
