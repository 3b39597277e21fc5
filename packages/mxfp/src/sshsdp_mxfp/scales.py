"""E8M0 scale codes: rounding of block maxima (RCEIL), and the powers of two they stand for.

Codes are handled as integers. A cast to float8_e8m0fnu rounds to the *nearest* power of two, which
saturates block maxima, and turns large values into NaN.
"""

import torch
from torch import Tensor

CODE_OF_INF, CODE_OF_NAN = 254, 255
BIAS = 127
EXPONENT_OF_MAX = 8  # 448 = 1.75 * 2^8, the largest E4M3 value


def round_up(amax: Tensor) -> Tensor:
    """Codes of block maxima: the smallest b with amax <= 448 * 2^(b - 127).

    Exact, from the bits: with amax = m * 2^e and 1 <= m < 2, b is e - 8 + 127, plus one if
    m > 1.75. Zero and everything up to 448 * 2^-127 give 0, infinity gives 254, NaN 255. The same
    codes as multiplication by float32(1/448) and rounding the exponent up (PTX
    cvt.rp.satfinite.ue8m0x2.f32).

    Args:
        amax: float32 or float64, any shape, not negative.

    Returns:
        uint8 of the same shape.
    """
    if amax.dtype == torch.float64:
        bits, mantissa_bits, bias = amax.view(torch.int64), 52, 1023
    else:
        bits, mantissa_bits, bias = amax.view(torch.int32), 23, 127
    # Carries into the exponent exactly if the mantissa is above 0.75.
    carry = (1 << (mantissa_bits - 2)) - 1
    exponent = ((bits + carry) >> mantissa_bits) - (bias - BIAS + EXPONENT_OF_MAX)
    codes = exponent.clamp_(0, CODE_OF_INF).to(torch.uint8)
    codes.masked_fill_(amax == torch.inf, CODE_OF_INF)
    return codes.masked_fill_(amax.isnan(), CODE_OF_NAN)


def multipliers(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """What elements are multiplied by before they are rounded: 2^(127 - b).

    Args:
        codes: uint8; the result for code 255 is of no use, its elements are all NaN.
        dtype: float32 or float64.
    """
    return _power_of_two(BIAS - codes.to(torch.int32), dtype)


def values(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """What codes stand for: 2^(b - 127), NaN for code 255.

    Args:
        codes: uint8.
        dtype: float32 or float64.
    """
    result = _power_of_two(codes.to(torch.int32).sub_(BIAS), dtype)
    return result.masked_fill_(codes == CODE_OF_NAN, torch.nan)


def _power_of_two(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """2^exponent for -127 <= exponent <= 127; exact, also where float32 is subnormal."""
    # A float32 exponent field of 0 means a subnormal: 2^-127 has the top mantissa bit alone.
    bits = torch.where(exponent == -BIAS, 1 << 22, (exponent + BIAS) << 23)
    return bits.to(torch.int32).view(torch.float32).to(dtype)
