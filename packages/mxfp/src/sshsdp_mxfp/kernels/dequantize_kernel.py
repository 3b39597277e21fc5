"""Dequantization in Triton: one tile of one matrix."""

# mypy: allow-untyped-decorators, disable-error-code="import-untyped,import-not-found"

import triton
import triton.language as tl

from sshsdp_mxfp.kernels.definition import decode_bits, value_bits
from sshsdp_mxfp.kernels.quantize_tile import places, spread


@triton.jit
def plain_values(
    code: tl.tensor,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    largest: tl.constexpr,
    hardware: tl.constexpr,
) -> tl.tensor:
    """What the codes of elements stand for, float32."""
    if hardware:
        if exponent_bits == 4:
            value = code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
        else:
            value = code.to(tl.float8e5, bitcast=True).to(tl.float32)
    else:
        patterns = decode_bits(code.to(tl.int32), exponent_bits, mantissa_bits, largest)
        value = patterns.to(tl.float32, bitcast=True)
    return value


@triton.jit
def to_bfloat16(value: tl.tensor) -> tl.tensor:
    """Round to nearest even on integers, as Triton's interpreter cuts."""
    pattern = value.to(tl.int32, bitcast=True)
    rounded = (pattern + 0x7FFF + ((pattern >> 16) & 1)) >> 16
    rounded = tl.where((pattern & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, rounded)
    return rounded.to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def dequantize_matrix(
    out: tl.tensor,
    data: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stored: tl.tensor,
    out_down: tl.tensor,
    out_across: tl.tensor,
    data_down: tl.tensor,
    data_across: tl.tensor,
    scale_down: tl.tensor,
    scale_across: tl.tensor,
    height: tl.constexpr,
    width: tl.constexpr,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    largest: tl.constexpr,
    per_byte: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    order: tl.constexpr,
    out_order: tl.constexpr,
    hardware: tl.constexpr,
    rounds: tl.constexpr,
) -> None:
    """Values of a matrix; `rounds` says that the device rounds to bfloat16 itself."""
    across = (columns + width - 1) // width
    top = (tl.program_id(0) // across) * height
    left = (tl.program_id(0) % across) * width
    row = top + tl.arange(0, height)
    column = left + tl.arange(0, width)
    item = left // per_byte + tl.arange(0, width // per_byte)
    place = places(row, item, data_down, data_across, order)
    code = tl.load(data + place, mask=(row < rows)[:, None] & (item < stored)[None, :], other=0)
    if per_byte == 2:
        code = tl.reshape(tl.join(code & 15, code >> 4), [height, width])
    value = plain_values(code, exponent_bits, mantissa_bits, largest, hardware)

    down = top // block_rows + tl.arange(0, height // block_rows)
    right = left // block_columns + tl.arange(0, width // block_columns)
    inside = (down * block_rows < rows)[:, None] & (right * block_columns < columns)[None, :]
    place = down.to(tl.int64)[:, None] * scale_down + right.to(tl.int64)[None, :] * scale_across
    grid = tl.load(scale + place, mask=inside, other=0).to(tl.int32)
    factor = value_bits(grid).to(tl.float32, bitcast=True)
    value = value * spread(factor, block_rows, block_columns)

    if out.dtype.element_ty == tl.bfloat16 and not rounds:
        result = to_bfloat16(value)
    else:
        result = value.to(out.dtype.element_ty)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(out + places(row, column, out_down, out_across, out_order), result, mask=mask)
