"""Quantization in Triton: one tile of one matrix, read once, written once or twice."""

# mypy: allow-untyped-decorators, disable-error-code="import-untyped,import-not-found"

import triton
import triton.language as tl

from sshsdp_mxfp.kernels.definition import encode, encode_stochastic, multiplier_bits, scale_code


@triton.jit
def widened(value: tl.tensor) -> tl.tensor:
    """float32 of what was loaded; by bits, as Triton's interpreter has other subnormals."""
    if value.dtype == tl.bfloat16:
        pattern = value.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        result = pattern.to(tl.float32, bitcast=True)
    else:
        result = value.to(tl.float32)
    return result


@triton.jit
def block_codes(
    value: tl.tensor,
    addend: tl.constexpr,
    top: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
) -> tl.tensor:
    """Scale codes of a tile of float32, int32 [row blocks, column blocks]."""
    height: tl.constexpr = value.shape[0]
    width: tl.constexpr = value.shape[1]
    magnitude = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    if block_columns > 1:
        magnitude = tl.max(
            tl.reshape(magnitude, [height, width // block_columns, block_columns]), 2
        )
    if block_rows > 1:
        across: tl.constexpr = width // block_columns
        magnitude = tl.max(tl.reshape(magnitude, [height // block_rows, block_rows, across]), 1)
    return scale_code(magnitude, addend, top, 23, 8)


@triton.jit
def spread(grid: tl.tensor, block_rows: tl.constexpr, block_columns: tl.constexpr) -> tl.tensor:
    """Every number of a grid, repeated over its block."""
    down: tl.constexpr = grid.shape[0]
    across: tl.constexpr = grid.shape[1]
    wide = tl.broadcast_to(grid[:, None, :, None], [down, block_rows, across, block_columns])
    return tl.reshape(wide, [down * block_rows, across * block_columns])


@triton.jit
def random_numbers(
    row: tl.tensor,
    group: tl.tensor,
    seed: tl.tensor,
    parameter: tl.tensor,
    ordinal: tl.tensor,
) -> tl.tensor:
    """The numbers of `sshsdp_mxfp.rounding` for rows and groups of four columns, int32."""
    height: tl.constexpr = row.shape[0]
    groups: tl.constexpr = group.shape[0]
    zero = tl.zeros([height, groups], tl.uint32)
    column = zero + group.to(tl.uint32)[None, :]
    row = zero + row.to(tl.uint32)[:, None]
    parameter = zero + parameter.to(tl.uint32)
    ordinal = zero + ordinal.to(tl.uint32)
    a, b, c, d = tl.philox(seed, column, row, parameter, ordinal)
    numbers = tl.join(tl.join(a, c), tl.join(b, d))
    return tl.reshape(numbers, [height, groups * 4]).to(tl.int32, bitcast=True)


@triton.jit
def element_codes(
    value: tl.tensor,
    code: tl.tensor,
    random: tl.tensor,
    exponent_bits: tl.constexpr,
    mantissa_bits: tl.constexpr,
    largest: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    stochastic: tl.constexpr,
    hardware: tl.constexpr,
) -> tl.tensor:
    """Codes of the elements of a tile, given those of its scales; uint8."""
    multiplier = multiplier_bits(code).to(tl.float32, bitcast=True)
    scaled = value * spread(multiplier, block_rows, block_columns)
    if stochastic:
        patterns = scaled.to(tl.int32, bitcast=True)
        result = encode_stochastic(patterns, random, exponent_bits, mantissa_bits, largest)
        element = result.to(tl.uint8)
    elif hardware:
        if exponent_bits == 4:
            element = scaled.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        else:
            element = scaled.to(tl.float8e5).to(tl.uint8, bitcast=True)
    else:
        patterns = scaled.to(tl.int32, bitcast=True)
        element = encode(patterns, exponent_bits, mantissa_bits, largest).to(tl.uint8)
    nan: tl.constexpr = (1 << (exponent_bits + mantissa_bits)) - 1
    lost = spread((code == 255).to(tl.int8), block_rows, block_columns)
    return tl.where(lost != 0, nan, element)


@triton.jit
def places(
    row: tl.tensor,
    column: tl.tensor,
    down: tl.tensor,
    across: tl.tensor,
    order: tl.constexpr,
) -> tl.tensor:
    """64-bit offsets of a tile; one of the two strides is 1, as `order` says, or none is known."""
    if order == "row":
        return row.to(tl.int64)[:, None] * down + column[None, :]
    if order == "column":
        return row[:, None] + column.to(tl.int64)[None, :] * across
    return row.to(tl.int64)[:, None] * down + column.to(tl.int64)[None, :] * across


@triton.jit
def store_elements(
    element: tl.tensor,
    mask: tl.tensor,
    row: tl.tensor,
    left: tl.tensor,
    rows: tl.tensor,
    stored: tl.tensor,
    data: tl.tensor,
    down: tl.tensor,
    across: tl.tensor,
    per_byte: tl.constexpr,
    order: tl.constexpr,
) -> None:
    """Write a tile of codes, rows of `stored` bytes; two of 4 bits share a byte."""
    height: tl.constexpr = element.shape[0]
    width: tl.constexpr = element.shape[1] // per_byte
    column = left // per_byte + tl.arange(0, width)
    if per_byte == 2:
        # Behind an odd last one, blocks of NaN would leave something.
        element = tl.where(mask, element, 0)
        low, high = tl.split(tl.reshape(element, [height, width, 2]))
        element = low | (high << 4)
    inside = (row < rows)[:, None] & (column < stored)[None, :]
    tl.store(data + places(row, column, down, across, order), element, mask=inside)


@triton.jit
def store_scales(
    code: tl.tensor,
    top: tl.tensor,
    left: tl.tensor,
    scale: tl.tensor,
    down: tl.tensor,
    across: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
) -> None:
    """Write the scale codes of a tile."""
    row = top // block_rows + tl.arange(0, code.shape[0])
    column = left // block_columns + tl.arange(0, code.shape[1])
    inside = (row * block_rows < rows)[:, None] & (column * block_columns < columns)[None, :]
    place = row.to(tl.int64)[:, None] * down + column.to(tl.int64)[None, :] * across
    tl.store(scale + place, code.to(tl.uint8), mask=inside)


@triton.jit
def quantize_tile(
    tile: tl.tensor,
    across: tl.tensor,
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
    """Quantize tile number `tile` of a matrix that has `across` of them side by side."""
    top = (tile // across).to(tl.int32) * height
    left = (tile % across).to(tl.int32) * width
    row = top + tl.arange(0, height)
    column = left + tl.arange(0, width)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    place = x + places(row, column, x_down, x_across, x_order)
    value = widened(tl.load(place, mask=mask, other=0.0))
    random = row
    if stochastic:
        group = left // 4 + tl.arange(0, width // 4)
        random = random_numbers(before + row, group, seed, parameter, ordinal)
    code = block_codes(value, addend, exponent, block_rows, block_columns)
    element = element_codes(
        value, code, random, exponent_bits, mantissa_bits, largest,
        block_rows, block_columns, stochastic, hardware,
    )  # fmt: skip
    store_scales(
        code, top, left, scale, scale_down, scale_across, rows, columns, block_rows, block_columns
    )
    store_elements(
        element, mask, row, left, rows, stored, data, data_down, data_across,
        per_byte, order,
    )  # fmt: skip
    if other_rows > 0:
        if other_rows != block_rows or other_columns != block_columns:
            code = block_codes(value, addend, exponent, other_rows, other_columns)
            element = element_codes(
                value, code, random, exponent_bits, mantissa_bits, largest,
                other_rows, other_columns, stochastic, hardware,
            )  # fmt: skip
        store_scales(
            code, top, left, other_scale, other_scale_down, other_scale_across,
            rows, columns, other_rows, other_columns,
        )  # fmt: skip
        store_elements(
            element, mask, row, left, rows, stored, other, other_down, other_across,
            per_byte, other_order,
        )  # fmt: skip
