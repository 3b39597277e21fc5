"""Part of an operand's storage by itself: what one rank of several keeps."""

import torch
from torch import Tensor

from sshsdp_mxfp.layouts import tiles
from sshsdp_mxfp.layouts.codes import as_cells, to_cells
from sshsdp_mxfp.layouts.layout import MatrixLayout, ScaleLayout


def pack_span(
    scales: Tensor,
    layout: ScaleLayout,
    start: int,
    stop: int,
    *,
    band: int = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Cells `start` to `stop` of the storage of the operand that pack_scales would make.

    For ranks that share an operand: each makes its own slice from the whole grid, without the rest.
    Grids of several parameters in one operand are concatenated first, along rows for the forward
    pass and along blocks for dgrad: a grid has 1/1024 of the weight's elements.

    Args:
        scales: as in pack_scales.
        layout: of the whole operand.
        start: first cell (bytes of codes, or floats).
        stop: the cell behind the last one.
        band: rows that share one row of `scales`.
        out: where to write to, 1-D of the layout's cell dtype; default is a new tensor.

    Returns:
        `out`, or a new tensor; padding in the span has the legal value.

    Raises:
        ValueError: for a span beyond the storage, scales of another shape or dtype, an `out` of
            another size, dtype or device.
    """
    if not 0 <= start <= stop <= layout.cells:
        raise ValueError(f"expected a span inside of {layout.cells} cells, got {start} to {stop}")
    sources = layout.split(as_cells(scales, layout.cell), band)
    if out is None:
        out = torch.empty(stop - start, dtype=layout.cell, device=scales.device)
    elif (out.dtype, tuple(out.shape)) != (layout.cell, (stop - start,)):
        raise ValueError(
            f"expected out of {layout.cell} and shape [{stop - start}], "
            f"got {out.dtype} and {list(out.shape)}"
        )
    elif out.device != scales.device:
        raise ValueError(f"expected out on {scales.device}, got {out.device}")
    for part, source in zip(layout.parts, sources, strict=True):
        first = max(start, part.start)
        last = min(stop, part.start + part.matrix.cells)
        for here in range(first, last, tiles.CHUNK):
            there = min(here + tiles.CHUNK, last)
            cell = torch.arange(here - part.start, there - part.start, device=scales.device)
            values = _look_up(source, part.matrix, cell, band)
            target = out[here - start : there - start]
            target.copy_(to_cells(values[0], layout.cell))
            target.masked_fill_(values[1], layout.fill)
    return out


def _look_up(
    source: Tensor, layout: MatrixLayout, cell: Tensor, band: int
) -> tuple[Tensor, Tensor]:
    """Scales of cells, and which of the cells are padding instead."""
    row, block = layout.position(cell)
    padding = (row >= layout.rows) | (block >= layout.blocks)
    row = row.clamp_(max=layout.rows - 1) // band
    return source[row, block.clamp_(max=layout.blocks - 1)], padding
