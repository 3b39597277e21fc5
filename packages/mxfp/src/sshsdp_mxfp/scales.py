"""E8M0 scale codes: rounding of block maxima (RCEIL), and the powers of two they stand for.

Codes are handled as integers. A cast to float8_e8m0fnu rounds to the *nearest* power of two, which
saturates block maxima, and turns large values into NaN.
"""

import math

import torch
from torch import Tensor

CODE_OF_INF, CODE_OF_NAN = 254, 255
BIAS = 127
EXPONENT_OF_MAX = 8  # 448 = 1.75 * 2^8, the largest E4M3 value


def round_up(magnitudes: Tensor) -> Tensor:
    """Codes of block maxima: the smallest b with amax <= 448 * 2^(b - 127).

    Exact, from the bits: with amax = m * 2^e and 1 <= m < 2, b is e - 8 + 127, plus one if
    m > 1.75. Zero and everything up to 448 * 2^-127 give 0, infinity gives 254, NaN 255. The same
    codes as multiplication by float32(1/448) and rounding the exponent up (PTX
    cvt.rp.satfinite.ue8m0x2.f32).

    Args:
        magnitudes: the bits of floats without sign: int32 for float32, int64 for float64. As
            integers they have the same order, with NaN above infinity.

    Returns:
        uint8 of the same shape.
    """
    mantissa_bits, bias = (52, 1023) if magnitudes.dtype == torch.int64 else (23, 127)
    # Carries into the exponent exactly if the mantissa is above 0.75.
    carry = (1 << (mantissa_bits - 2)) - 1
    exponents = magnitudes.add(carry).bitwise_right_shift_(mantissa_bits)
    codes = exponents.sub_(bias - BIAS + EXPONENT_OF_MAX).clamp_(0, CODE_OF_INF).to(torch.uint8)
    infinity = (2 * bias + 1) << mantissa_bits
    if int(magnitudes.max()) >= infinity:
        codes.masked_fill_(magnitudes == infinity, CODE_OF_INF)
        codes.masked_fill_(magnitudes > infinity, CODE_OF_NAN)
    return codes


def multipliers(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """What elements are multiplied by before they are rounded: 2^(127 - b).

    Undefined for code 255: all elements of such a block are NaN, whatever they were.

    Args:
        codes: uint8.
        dtype: float32 or float64.
    """
    return _look_up(_MULTIPLIERS[dtype], codes)


def values(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """What codes stand for: 2^(b - 127), NaN for code 255.

    Args:
        codes: uint8.
        dtype: float32 or float64.
    """
    return _look_up(_VALUES[dtype], codes)


def _look_up(table: Tensor, codes: Tensor) -> Tensor:
    return table.index_select(0, codes.flatten().to(torch.int32)).view(codes.shape)


def _powers_of_two(sign: int, of_nan: float) -> dict[torch.dtype, Tensor]:
    """2^(sign * (b - 127)) for every code b; exact, also where float32 is subnormal."""
    powers = [2.0 ** (sign * (code - BIAS)) for code in range(CODE_OF_NAN)] + [of_nan]
    return {dtype: torch.tensor(powers, dtype=dtype) for dtype in (torch.float32, torch.float64)}


_MULTIPLIERS, _VALUES = _powers_of_two(-1, 0.0), _powers_of_two(1, math.nan)
