"""E8M0 scale codes: how block maxima become codes, and the powers of two that codes stand for.

Codes are handled as integers. A cast to float8_e8m0fnu rounds to the *nearest* power of two, which
saturates block maxima, and turns large values into NaN.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from sshsdp_mxfp import bits
from sshsdp_mxfp.formats import Format

CODE_OF_INF, CODE_OF_NAN = 254, 255
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
_WIDTHS = {torch.int32: (23, 8), torch.int64: (52, 11)}


def addend(fmt: Format, mantissa_bits: int) -> int:
    """The rule of a format, as the number that `bits.scale_code` adds to a block maximum.

    Args:
        fmt: its element and rule count.
        mantissa_bits: of the maximum.

    Returns:
        What carries into the exponent exactly where the rule rounds up. With "rceil" it does if the
        mantissa is above that of the largest element: the same codes as the multiplication by
        float32(1 / largest) and rounding up of NVIDIA's libraries and instructions (PTX
        cvt.rp.satfinite.ue8m0x2.f32), but for one maximum: of the float after largest * 2^-127
        their product is rounded down, so that it saturates at code 0.
    """
    element = fmt.element
    one = 1 << mantissa_bits
    match fmt.rule:
        case "floor":
            return 0
        case "ceil":
            return one - 1
        case "even":
            return one >> (element.mantissa_bits + 1)
        case "rceil":
            fraction = element.largest_code % (1 << element.mantissa_bits)
            return one - 1 - (fraction << (mantissa_bits - element.mantissa_bits))


def codes_of(magnitudes: Tensor, fmt: Format) -> Tensor:
    """Codes of block maxima.

    Args:
        magnitudes: bits of floats without sign: int32 for float32, int64 for float64.
        fmt: its element and rule count.

    Returns:
        int32 of the same shape, 0..255.
    """
    mantissa_bits, exponent_bits = _WIDTHS[magnitudes.dtype]
    rule = addend(fmt, mantissa_bits)
    top = fmt.element.largest_exponent
    # One look-up instead of a dozen operations on few numbers each. At the highest exponent it
    # can't tell infinities from maxima that were rounded up.
    exponents = magnitudes.add(rule).bitwise_right_shift_(mantissa_bits)
    table = _codes(top, magnitudes.dtype)
    if magnitudes.numel() and _inside(exponents, len(table)):
        return _look_up(table, exponents)
    codes = bits.scale_code(magnitudes, rule, top, mantissa_bits, exponent_bits)
    return codes.to(torch.int32)


def multipliers(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """What elements are multiplied by before they are rounded: 2^(127 - code), exactly.

    Args:
        codes: int32; for 255 the result is some finite number.
        dtype: float32 or float64.
    """
    return _look_up(_MULTIPLIERS[dtype], codes)


def values(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """What codes stand for: 2^(code - 127), NaN for 255; exact.

    Args:
        codes: int32.
        dtype: float32 or float64.
    """
    return _look_up(_VALUES[dtype], codes)


def _inside(exponents: Tensor, size: int) -> bool:
    low, high = exponents.aminmax()  # a NaN may have carried into the sign
    return int(low) >= 0 and int(high) < size


def _look_up(table: Tensor, index: Tensor) -> Tensor:
    return table.index_select(0, index.flatten()).view(index.shape)


@cache
def _codes(largest_exponent: int, integer: torch.dtype) -> Tensor:
    """Codes for every exponent of finite maxima."""
    mantissa_bits, exponent_bits = _WIDTHS[integer]
    exponents = torch.arange((1 << exponent_bits) - 1, dtype=integer) << mantissa_bits
    codes = bits.scale_code(exponents, 0, largest_exponent, mantissa_bits, exponent_bits)
    return codes.to(torch.int32)


def _powers(of: Callable[[Tensor], Tensor]) -> dict[torch.dtype, Tensor]:
    single = of(torch.arange(256, dtype=torch.int32)).view(torch.float32)
    return {dtype: single.to(dtype) for dtype in INTEGERS}


_MULTIPLIERS, _VALUES = _powers(bits.multiplier_bits), _powers(bits.value_bits)
