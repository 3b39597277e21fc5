"""Quantization in Triton: kernels for one matrix and for many."""

# mypy: allow-untyped-decorators, disable-error-code="import-untyped,import-not-found"

import torch
import triton
import triton.language as tl

from sshsdp_mxfp.kernels.lookup import find_job, number, pointer
from sshsdp_mxfp.kernels.quantize_tile import quantize_tile

COLUMNS = (
    *("first", "across", "rows", "columns", "stored"),
    *("x", "x_down", "x_across"),
    *("before", "seed", "parameter", "ordinal"),
    *("data", "data_down", "data_across", "scale", "scale_down", "scale_across"),
    *("other", "other_down", "other_across"),
    *("other_scale", "other_scale_down", "other_scale_across"),
)  # of a table of jobs; "first" counts programs, "across" tiles side by side
FIELDS = tl.constexpr(len(COLUMNS))
KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit(do_not_specialize=["before", "seed", "parameter", "ordinal"])
def quantize_one(
    rows: tl.tensor,
    columns: tl.tensor,
    stored: tl.tensor,
    x: tl.tensor,
    x_down: tl.tensor,
    x_across: tl.tensor,
    before: tl.tensor,
    seed: tl.tensor,
    parameter: tl.tensor,
    ordinal: tl.tensor,
    data: tl.tensor,
    data_down: tl.tensor,
    data_across: tl.tensor,
    scale: tl.tensor,
    scale_down: tl.tensor,
    scale_across: tl.tensor,
    other: tl.tensor,
    other_down: tl.tensor,
    other_across: tl.tensor,
    other_scale: tl.tensor,
    other_scale_down: tl.tensor,
    other_scale_across: tl.tensor,
    height: tl.constexpr,
    width: tl.constexpr,
    addend: tl.constexpr,
    exponent: tl.constexpr,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    largest: tl.constexpr,
    per_byte: tl.constexpr,
    x_order: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    order: tl.constexpr,
    other_rows: tl.constexpr,
    other_columns: tl.constexpr,
    other_order: tl.constexpr,
    stochastic: tl.constexpr,
    hardware: tl.constexpr,
) -> None:
    """Quantize one matrix; the launcher knows what is a multiple of 16."""
    across = (columns + width - 1) // width
    quantize_tile(
        tl.program_id(0),
        across,
        rows, columns, stored, x, x_down, x_across, before, seed, parameter, ordinal, data,
        data_down, data_across, scale, scale_down, scale_across, other, other_down,
        other_across, other_scale, other_scale_down, other_scale_across, height, width, addend,
        exponent, exponent_bits, mantissa_bits, largest, per_byte, x_order, block_rows,
        block_columns, order, other_rows, other_columns, other_order, stochastic, hardware,
    )  # fmt: skip


@triton.jit(do_not_specialize=["jobs", "step"])
def quantize_many(
    table: tl.tensor,
    jobs: tl.tensor,
    step: tl.tensor,
    kind: tl.constexpr,
    aligned: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    addend: tl.constexpr,
    exponent: tl.constexpr,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    largest: tl.constexpr,
    per_byte: tl.constexpr,
    x_order: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    order: tl.constexpr,
    other_rows: tl.constexpr,
    other_columns: tl.constexpr,
    other_order: tl.constexpr,
    stochastic: tl.constexpr,
    hardware: tl.constexpr,
) -> None:
    """Quantize many matrices.

    `kind` is the type of their elements, `step` is added to the ordinals of roundings. `aligned`
    promises that all that matters to 128-bit accesses is a multiple of 16.
    """
    program = tl.program_id(0)
    job = table + find_job(table, jobs, program, FIELDS).to(tl.int64) * FIELDS
    tall: tl.constexpr = x_order == "column" or order == "column" or other_order == "column"
    quantize_tile(
        program - number(job, 0, False),
        number(job, 1, False),  # across
        number(job, 2, aligned and tall),  # rows
        number(job, 3, aligned),  # columns
        number(job, 4, aligned),  # stored
        pointer(job, 5, kind, aligned),  # x
        number(job, 6, aligned),  # x_down
        number(job, 7, aligned),  # x_across
        number(job, 8, False),  # before
        number(job, 9, False),  # seed
        number(job, 10, False),  # parameter
        number(job, 11, False) + step,  # ordinal
        pointer(job, 12, tl.uint8, aligned),  # data
        number(job, 13, aligned),  # data_down
        number(job, 14, aligned),  # data_across
        pointer(job, 15, tl.uint8, False),  # scale
        number(job, 16, False),  # scale_down
        number(job, 17, False),  # scale_across
        pointer(job, 18, tl.uint8, aligned),  # other
        number(job, 19, aligned),  # other_down
        number(job, 20, aligned),  # other_across
        pointer(job, 21, tl.uint8, False),  # other_scale
        number(job, 22, False),  # other_scale_down
        number(job, 23, False),  # other_scale_across
        height, width, addend, exponent, exponent_bits, mantissa_bits, largest, per_byte,
        x_order, block_rows, block_columns, order, other_rows, other_columns, other_order,
        stochastic, hardware,
    )  # fmt: skip
