"""Scale layouts on GPUs: what is launched for which rectangles, spans and operands."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sshsdp_mxfp.kernels.launch import LIMIT, Launch, check_device, check_size, table
from sshsdp_mxfp.kernels.planes import ALIGNMENT
from sshsdp_mxfp.kernels.variant import strides
from sshsdp_mxfp.layouts.float32 import Float32Layout
from sshsdp_mxfp.layouts.layout import MatrixLayout
from sshsdp_mxfp.layouts.packed import PackedLayout
from sshsdp_mxfp.layouts.plain import PlainLayout
from sshsdp_mxfp.layouts.span import SpanPart
from sshsdp_mxfp.layouts.swizzled import SwizzledLayout
from sshsdp_mxfp.layouts.write import CheckedWrite

_HEIGHT, _WIDTH, _RUN, _WARPS = 64, 32, 2048, 4


def formula(layout: MatrixLayout) -> tuple[str, int]:
    """The name of a layout's formulas and the size that they take.

    Raises:
        TypeError: for layouts without formulas.
    """
    match layout:
        case PlainLayout():
            return "plain", layout.blocks
        case PackedLayout():
            return "packed", layout.pitch
        case Float32Layout():
            return "float32", layout.pitch
        case SwizzledLayout():
            return "swizzled", layout.tiles
    raise TypeError(f"expected a layout with formulas for kernels, got {type(layout).__name__}")


def prepare_writes(writes: Sequence[CheckedWrite], *, direct: bool = False) -> tuple[Launch, ...]:
    """What performs writes: one launch for all of one layout and dtype.

    Args:
        writes: checked ones; those that overlap leave either's scales.
        direct: don't make a table of jobs where one write is all there is.

    Raises:
        ValueError: for tensors on several devices or that are too large.
        MissingTritonError: if Triton isn't installed.
    """
    full = [write for write in writes if write.scales.numel()]
    if not full:
        return ()
    device = check_device(*(part for write in full for part in (write.scales, write.cells)))
    kinds = defaultdict[tuple[Any, ...], list[CheckedWrite]](list)
    for write in full:
        check_size(rows=write.rows, blocks=write.blocks)
        kinds[_kind(write.matrix, write.scales, write.cells)].append(write)
    return tuple(_writes(key, found, device, direct) for key, found in kinds.items())


def prepare_spans(parts: Sequence[SpanPart], *, direct: bool = False) -> tuple[Launch, ...]:
    """What fills spans of storage, padding included: one launch for all of one layout and dtype.

    Args:
        parts: of spans.
        direct: don't make a table of jobs where one part is all there is.

    Raises:
        ValueError: for tensors on several devices or that are too large.
        MissingTritonError: if Triton isn't installed.
    """
    full = [part for part in parts if part.target.numel()]
    if not full:
        return ()
    device = check_device(*(tensor for part in full for tensor in (part.source, part.target)))
    kinds = defaultdict[tuple[Any, ...], list[SpanPart]](list)
    for part in full:
        key = _kind(part.matrix, part.source, part.target)
        kinds[*key, _aligned(part.target), part.matrix.fill].append(part)
    return tuple(_spans(key, found, device, direct) for key, found in kinds.items())


def prepare_read(cells: Tensor, matrix: MatrixLayout, target: Tensor, band: int) -> Launch:
    """What reads the scales of every band's first row into a matrix.

    Args:
        cells: storage of one matrix.
        matrix: its layout.
        target: [ceil(rows / band), blocks] of the same dtype.
        band: rows that share their scales.

    Raises:
        ValueError: for tensors on several devices or that are too large.
        MissingTritonError: if Triton isn't installed.
    """
    device = check_device(cells, target)
    rows, blocks = target.shape
    check_size(rows=rows, blocks=blocks)
    from sshsdp_mxfp.kernels.definition import OFFSETS  # needs Triton
    from sshsdp_mxfp.kernels.relayout_kernel import read_matrix

    name, size = formula(matrix)
    sizes = {"rows": rows, "blocks": blocks, "band": band, "size": size}
    arguments = {"source": cells, "target": target, **sizes, **strides("target", target)}
    constants = {"offset": OFFSETS[name], "wide": matrix.cells >= LIMIT, **_TILE}
    return Launch(read_matrix, _tiles(rows, blocks), arguments, constants, device, _WARPS)


def _writes(
    key: tuple[Any, ...], found: Sequence[CheckedWrite], device: torch.device, direct: bool
) -> Launch:
    from sshsdp_mxfp.kernels import relayout_kernel as kernel  # needs Triton
    from sshsdp_mxfp.kernels.definition import OFFSETS

    name, wide, kind, cell = key
    constants = {"offset": OFFSETS[name], "wide": wide, **_TILE}
    jobs = [
        {
            "rows": write.rows,
            "blocks": write.blocks,
            "row": write.row,
            "block": write.block,
            "band": write.band,
            "size": formula(write.matrix)[1],
            "source": write.scales,
            **strides("source", write.scales),
            "target": write.cells,
        }
        for write in found
    ]
    programs = [_tiles(write.rows, write.blocks) for write in found]
    if direct and len(jobs) == 1:
        return Launch(kernel.write_one, programs[0], jobs[0], constants, device, _WARPS)
    for job, write in zip(jobs, found, strict=True):
        job["across"] = -(-write.blocks // _WIDTH)
    constants |= {"kind": kernel.KINDS[kind], "cell": kernel.KINDS[cell]}
    return _batch(kernel.write_many, kernel.RECTANGLE, jobs, programs, constants, device)


def _spans(
    key: tuple[Any, ...], found: Sequence[SpanPart], device: torch.device, direct: bool
) -> Launch:
    from sshsdp_mxfp.kernels import relayout_kernel as kernel  # needs Triton
    from sshsdp_mxfp.kernels.definition import POSITIONS

    name, wide, kind, cell, aligned, fill = key
    constants = {"position": POSITIONS[name], "wide": wide, "count": _RUN, "fill": fill}
    jobs = [
        {
            "cells": part.target.numel(),
            "begin": part.begin,
            "rows": part.matrix.rows,
            "blocks": part.matrix.blocks,
            "band": part.band,
            "size": formula(part.matrix)[1],
            "source": part.source,
            **strides("source", part.source),
            "target": part.target,
        }
        for part in found
    ]
    programs = [-(-part.target.numel() // _RUN) for part in found]
    if direct and len(jobs) == 1:
        return Launch(kernel.fill_one, programs[0], jobs[0], constants, device, _WARPS)
    constants |= {"kind": kernel.KINDS[kind], "cell": kernel.KINDS[cell], "aligned": aligned}
    return _batch(kernel.fill_many, kernel.SPAN, jobs, programs, constants, device)


def _batch(
    kernel: Any,
    columns: Sequence[str],
    jobs: Sequence[dict[str, Any]],
    programs: Sequence[int],
    constants: dict[str, Any],
    device: torch.device,
) -> Launch:
    rows, first = [], 0
    for job, count in zip(jobs, programs, strict=True):
        job["first"] = first
        rows.append([_plain(job[name]) for name in columns])
        first += count
    check_size(**{"number of tiles": first})
    arguments = {"table": table(rows, device), "jobs": len(rows)}
    kept = tuple(job[name] for job in jobs for name in ("source", "target"))
    return Launch(kernel, first, arguments, constants, device, _WARPS, kept)


_TILE = {"height": _HEIGHT, "width": _WIDTH}


def _plain(value: int | Tensor) -> int:
    return value.data_ptr() if isinstance(value, Tensor) else value


def _tiles(rows: int, blocks: int) -> int:
    return -(-rows // _HEIGHT) * -(-blocks // _WIDTH)


def _kind(matrix: MatrixLayout, scales: Tensor, cells: Tensor) -> tuple[Any, ...]:
    return formula(matrix)[0], matrix.cells >= LIMIT, scales.dtype, cells.dtype


def _aligned(target: Tensor) -> bool:
    return target.data_ptr() % ALIGNMENT == 0 and target.numel() % ALIGNMENT == 0
