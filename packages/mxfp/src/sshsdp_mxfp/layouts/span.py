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
        if first < last:
            target = out[first - start : last - start]
            _fill(target, source, part.matrix, first - part.start, band)
    return out


def _fill(target: Tensor, source: Tensor, layout: MatrixLayout, start: int, band: int) -> None:
    """Fill the cells from `start` on: positions are worked out once per run of cells."""
    run, stop = layout.run, start + target.numel()
    step = max(tiles.CHUNK // run, 1) * run
    for first in range(start // run * run, stop, step):
        cell = torch.arange(first, min(first + step, stop), run, device=source.device)
        row, block = layout.position(cell)
        block = block.unsqueeze(1) + torch.arange(run, device=source.device)
        padding = (block >= layout.blocks) | (row >= layout.rows).unsqueeze(1)
        row = row.clamp_(max=layout.rows - 1) // band
        values = to_cells(
            source[row.unsqueeze(1), block.clamp_(max=layout.blocks - 1)], layout.cell
        )
        values = values.masked_fill_(padding, layout.fill).flatten()
        here = max(first, start)
        there = min(first + step, stop)
        target[here - start : there - start] = values[here - first : there - first]
