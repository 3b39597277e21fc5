"""Parts of operands' storage by themselves: what one rank of several keeps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sshsdp_mxfp.layouts import tiles
from sshsdp_mxfp.layouts.codes import as_cells, to_cells
from sshsdp_mxfp.layouts.layout import MatrixLayout, ScaleLayout


@dataclass(frozen=True, eq=False, slots=True)
class ScaleSpan:
    """Cells of an operand's storage, and the scales of the whole operand.

    Attributes:
        scales: as in pack_scales.
        layout: of the whole operand.
        start: first cell (bytes of codes, or floats).
        stop: the cell behind the last one.
        out: where the cells are written to, 1-D of the layout's cell dtype.
        band: rows that share one row of `scales`.
    """

    scales: Tensor
    layout: ScaleLayout
    start: int
    stop: int
    out: Tensor
    band: int = 1

    def parts(self) -> list["SpanPart"]:
        """Its share of every matrix of the operand.

        Raises:
            ValueError: as pack_span does.
        """
        layout, out = self.layout, self.out
        check_range(layout, self.start, self.stop)
        sources = layout.split(as_cells(self.scales, layout.cell), self.band)
        if (out.dtype, tuple(out.shape)) != (layout.cell, (self.stop - self.start,)):
            raise ValueError(
                f"expected out of {layout.cell} and shape [{self.stop - self.start}], "
                f"got {out.dtype} and {list(out.shape)}"
            )
        if out.device != self.scales.device:
            raise ValueError(f"expected out on {self.scales.device}, got {out.device}")
        return list(self._parts(sources))

    def _parts(self, sources: Sequence[Tensor]) -> Iterator["SpanPart"]:
        for part, source in zip(self.layout.parts, sources, strict=True):
            first = max(self.start, part.start)
            last = min(self.stop, part.start + part.matrix.cells)
            if first < last:
                target = self.out.narrow(0, first - self.start, last - first)
                yield SpanPart(target, source, part.matrix, first - part.start, self.band)


@dataclass(frozen=True, eq=False, slots=True)
class SpanPart:
    """Cells of one matrix of scales.

    Attributes:
        target: the cells.
        source: scales of the whole matrix, of which `band` rows share one.
        matrix: the layout of the matrix.
        begin: where in its storage the cells begin.
        band: see `source`.
    """

    target: Tensor
    source: Tensor
    matrix: MatrixLayout
    begin: int
    band: int

    def fill(self) -> None:
        """Fill the cells: positions are worked out once per run of cells."""
        layout, source, target = self.matrix, self.source, self.target
        run, stop = layout.run, self.begin + target.numel()
        step = max(tiles.CHUNK // run, 1) * run
        for first in range(self.begin // run * run, stop, step):
            cell = torch.arange(first, min(first + step, stop), run, device=source.device)
            row, block = layout.position(cell)
            block = block.unsqueeze(1) + torch.arange(run, device=source.device)
            padding = (block >= layout.blocks) | (row >= layout.rows).unsqueeze(1)
            row = row.clamp_(max=layout.rows - 1) // self.band
            values = to_cells(
                source[row.unsqueeze(1), block.clamp_(max=layout.blocks - 1)], layout.cell
            )
            values = values.masked_fill_(padding, layout.fill).flatten()
            here = max(first, self.begin)
            there = min(first + step, stop)
            target[here - self.begin : there - self.begin] = values[here - first : there - first]


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
    check_range(layout, start, stop)
    if out is None:
        out = torch.empty(stop - start, dtype=layout.cell, device=scales.device)
    pack_spans([ScaleSpan(scales, layout, start, stop, out, band)])
    return out


def pack_spans(spans: Sequence[ScaleSpan]) -> None:
    """What pack_span does, for many operands in one call; on CUDA devices in one launch per layout.

    All are checked before the first one is written.

    Raises:
        ValueError: as pack_span does.
    """
    fill_parts([part for span in spans for part in span.parts()])


def fill_parts(parts: Sequence[SpanPart]) -> None:
    """Fill parts that were found good."""
    if any(part.target.is_cuda for part in parts):
        from sshsdp_mxfp.kernels.relayout import prepare_spans  # it needs this module

        for launch in prepare_spans(parts, direct=True):
            launch.run()
        return
    for part in parts:
        part.fill()


def check_range(layout: ScaleLayout, start: int, stop: int) -> None:
    """Refuse cells that storage doesn't have."""
    if not 0 <= start <= stop <= layout.cells:
        raise ValueError(f"expected a span inside of {layout.cells} cells, got {start} to {stop}")
