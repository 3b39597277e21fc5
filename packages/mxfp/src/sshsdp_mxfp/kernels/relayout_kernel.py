"""Scale layouts in Triton: rectangles into operands, spans of storage, and back.

`offset` and `position` are the formulas of a layout. Indices have 64 bits where `wide` says that
storage has more than 2^31 cells: divisions by sizes are dear. Numbers that indices are made of are
never compiled in as constants, which have no width.
"""

# mypy: allow-untyped-decorators, disable-error-code="import-untyped,import-not-found"

import torch
import triton
import triton.language as tl

from sshsdp_mxfp.kernels.definition import value_bits
from sshsdp_mxfp.kernels.lookup import find_job, number, pointer

RECTANGLE = (
    *("first", "across", "rows", "blocks", "row", "block", "band", "size"),
    *("source", "source_down", "source_across", "target"),
)  # columns of a table of jobs; "first" counts programs, "across" tiles side by side
SPAN = (
    *("first", "cells", "begin", "rows", "blocks", "band", "size"),
    *("source", "source_down", "source_across", "target"),
)
READ = (
    *("rows", "blocks", "band", "size", "source", "target"),
    *("target_down", "target_across"),
)
RECTANGLE_FIELDS, SPAN_FIELDS = tl.constexpr(len(RECTANGLE)), tl.constexpr(len(SPAN))
KINDS = {torch.uint8: tl.uint8, torch.float32: tl.float32}


@triton.jit
def as_cells(value: tl.tensor, cell: tl.constexpr) -> tl.tensor:
    """Scales as a layout holds them: codes become floats where it has floats."""
    if cell == tl.float32 and value.dtype == tl.uint8:
        value = value_bits(value.to(tl.int32)).to(tl.float32, bitcast=True)
    return value


@triton.jit
def index_of(number: tl.tensor, wide: tl.constexpr) -> tl.tensor:
    """An index of 64 or 32 bits."""
    return number.to(tl.int64) if wide else number.to(tl.int32)


@triton.jit
def write_tile(
    tile: tl.tensor,
    across: tl.tensor,
    rows: tl.tensor,
    blocks: tl.tensor,
    row: tl.tensor,
    block: tl.tensor,
    band: tl.tensor,
    size: tl.tensor,
    source: tl.tensor,
    source_down: tl.tensor,
    source_across: tl.tensor,
    target: tl.tensor,
    offset: tl.constexpr,
    wide: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """Write a tile of a rectangle of scales, whose corner is (row, block) of an operand."""
    down = (tile // across).to(tl.int32) * height + tl.arange(0, height)
    right = (tile % across).to(tl.int32) * width + tl.arange(0, width)
    inside = (down < rows)[:, None] & (right < blocks)[None, :]
    bands = (down // band).to(tl.int64)[:, None]
    place = bands * source_down + right.to(tl.int64)[None, :] * source_across
    value = as_cells(tl.load(source + place, mask=inside, other=0), target.dtype.element_ty)
    rows_of = index_of(row + down, wide)[:, None]
    cell = offset(rows_of, index_of(block + right, wide)[None, :], index_of(size, wide))
    tl.store(target + cell, value, mask=inside)


@triton.jit
def fill_run(
    run: tl.tensor,
    cells: tl.tensor,
    begin: tl.tensor,
    rows: tl.tensor,
    blocks: tl.tensor,
    band: tl.tensor,
    size: tl.tensor,
    source: tl.tensor,
    source_down: tl.tensor,
    source_across: tl.tensor,
    target: tl.tensor,
    position: tl.constexpr,
    wide: tl.constexpr,
    count: tl.constexpr,
    fill: tl.constexpr,
) -> None:
    """Write a run of the cells from `begin` on, padding included."""
    cell = index_of(run, wide) * count + tl.arange(0, count)
    row, block = position(index_of(begin, wide) + cell, index_of(size, wide))
    inside = cell < cells
    scale = inside & (row < rows) & (block < blocks)
    place = (row // index_of(band, wide)).to(tl.int64) * source_down
    place += block.to(tl.int64) * source_across
    value = as_cells(tl.load(source + place, mask=scale, other=0), target.dtype.element_ty)
    tl.store(target + cell, tl.where(scale, value, fill), mask=inside)


@triton.jit(do_not_specialize=["row", "block", "band", "size"])
def write_one(
    rows: tl.tensor,
    blocks: tl.tensor,
    row: tl.tensor,
    block: tl.tensor,
    band: tl.tensor,
    size: tl.tensor,
    source: tl.tensor,
    source_down: tl.tensor,
    source_across: tl.tensor,
    target: tl.tensor,
    offset: tl.constexpr,
    wide: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """Write one rectangle."""
    write_tile(
        tl.program_id(0), (blocks + width - 1) // width, rows, blocks, row, block, band, size,
        source, source_down, source_across, target, offset, wide, height, width,
    )  # fmt: skip


@triton.jit(do_not_specialize=["jobs"])
def write_many(
    table: tl.tensor,
    jobs: tl.tensor,
    kind: tl.constexpr,
    cell: tl.constexpr,
    offset: tl.constexpr,
    wide: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """Write many rectangles; `kind` and `cell` are the types of scales and of storage."""
    program = tl.program_id(0)
    found = find_job(table, jobs, program, RECTANGLE_FIELDS)
    job = table + found.to(tl.int64) * RECTANGLE_FIELDS
    write_tile(
        program - number(job, 0, False),
        number(job, 1, False),  # across
        number(job, 2, False).to(tl.int32),  # rows
        number(job, 3, False).to(tl.int32),  # blocks
        number(job, 4, False),  # row
        number(job, 5, False),  # block
        number(job, 6, False).to(tl.int32),  # band
        number(job, 7, False),  # size
        pointer(job, 8, kind, False),  # source
        number(job, 9, False),  # source_down
        number(job, 10, False),  # source_across
        pointer(job, 11, cell, False),  # target
        offset, wide, height, width,
    )  # fmt: skip


@triton.jit(do_not_specialize=["begin", "band", "size"])
def fill_one(
    cells: tl.tensor,
    begin: tl.tensor,
    rows: tl.tensor,
    blocks: tl.tensor,
    band: tl.tensor,
    size: tl.tensor,
    source: tl.tensor,
    source_down: tl.tensor,
    source_across: tl.tensor,
    target: tl.tensor,
    position: tl.constexpr,
    wide: tl.constexpr,
    count: tl.constexpr,
    fill: tl.constexpr,
) -> None:
    """Write one span."""
    fill_run(
        tl.program_id(0), cells, begin, rows, blocks, band, size,
        source, source_down, source_across, target, position, wide, count, fill,
    )  # fmt: skip


@triton.jit(do_not_specialize=["jobs"])
def fill_many(
    table: tl.tensor,
    jobs: tl.tensor,
    kind: tl.constexpr,
    cell: tl.constexpr,
    aligned: tl.constexpr,
    position: tl.constexpr,
    wide: tl.constexpr,
    count: tl.constexpr,
    fill: tl.constexpr,
) -> None:
    """Write many spans; `aligned` promises addresses that are multiples of 16."""
    program = tl.program_id(0)
    found = find_job(table, jobs, program, SPAN_FIELDS)
    job = table + found.to(tl.int64) * SPAN_FIELDS
    fill_run(
        program - number(job, 0, False),
        number(job, 1, aligned),  # cells
        number(job, 2, False),  # begin
        number(job, 3, False),  # rows
        number(job, 4, False),  # blocks
        number(job, 5, False),  # band
        number(job, 6, False),  # size
        pointer(job, 7, kind, False),  # source
        number(job, 8, False),  # source_down
        number(job, 9, False),  # source_across
        pointer(job, 10, cell, aligned),  # target
        position, wide, count, fill,
    )  # fmt: skip


@triton.jit(do_not_specialize=["band", "size"])
def read_matrix(
    rows: tl.tensor,
    blocks: tl.tensor,
    band: tl.tensor,
    size: tl.tensor,
    source: tl.tensor,
    target: tl.tensor,
    target_down: tl.tensor,
    target_across: tl.tensor,
    offset: tl.constexpr,
    wide: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
) -> None:
    """Read the scales of every band's first row."""
    across = (blocks + width - 1) // width
    down = (tl.program_id(0) // across) * height + tl.arange(0, height)
    right = (tl.program_id(0) % across) * width + tl.arange(0, width)
    inside = (down < rows)[:, None] & (right < blocks)[None, :]
    row = index_of(down, wide)[:, None] * index_of(band, wide)
    cell = offset(row, index_of(right, wide)[None, :], index_of(size, wide))
    place = down.to(tl.int64)[:, None] * target_down + right.to(tl.int64)[None, :] * target_across
    tl.store(target + place, tl.load(source + cell, mask=inside, other=0), mask=inside)
