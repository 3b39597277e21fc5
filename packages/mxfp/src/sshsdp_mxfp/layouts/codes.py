"""E8M0 codes as floats and back: bits only, nothing is rounded."""

import torch
from torch import Tensor

from sshsdp_mxfp import bits
from sshsdp_mxfp.tensor import SCALE

SMALLEST, INFINITY = 0x00400000, 0x7F800000  # 2^-127 is subnormal


def scales_of_codes(codes: Tensor) -> Tensor:
    """What codes stand for: 2^(code - 127), NaN for 255.

    Args:
        codes: uint8 or float8_e8m0fnu, any shape.

    Returns:
        float32, the same shape.

    Raises:
        ValueError: for another dtype.
    """
    return bits.value_bits(as_codes(codes).to(torch.int32)).view(torch.float32)


def codes_of_scales(scales: Tensor) -> Tensor:
    """Codes of scales that are powers of two already.

    A scale can't be rounded here: elements that were divided by the old one would be off by the
    factor between the two.

    Args:
        scales: float32, any shape; powers of two from 2^-127 to 2^127, or NaN.

    Returns:
        uint8, the same shape.

    Raises:
        ValueError: for another dtype; for any other value, named with its place.
    """
    if scales.dtype != torch.float32:
        raise ValueError(f"expected scales of torch.float32, got {scales.dtype}")
    pattern = scales.contiguous().view(torch.int32)
    nan, smallest = scales.isnan(), pattern == SMALLEST
    wrong = ((pattern & 0x807FFFFF) != 0) | (pattern == 0) | (pattern == INFINITY)
    wrong &= ~(nan | smallest)
    if bool(wrong.any()):
        place = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"expected scales that are powers of two from 2^-127 to 2^127, "
            f"got {scales[tuple(place)].item()} at {place}; round scales before elements are "
            f"divided by them"
        )
    codes = pattern.bitwise_right_shift(23).masked_fill_(nan, 255).masked_fill_(smallest, 0)
    return codes.to(torch.uint8)


def as_codes(scales: Tensor) -> Tensor:
    """Codes as bytes, without a copy."""
    if scales.dtype not in (torch.uint8, SCALE):
        raise ValueError(
            f"expected codes of torch.uint8 or {SCALE}, got {scales.dtype}; "
            f"convert float32 scales by codes_of_scales"
        )
    return scales.view(torch.uint8)


def as_cells(scales: Tensor, cell: torch.dtype) -> Tensor:
    """Scales from which `to_cells` makes cells: codes, or floats where the layout has floats."""
    if cell == torch.float32 and scales.dtype == torch.float32:
        return scales
    return as_codes(scales)


def to_cells(scales: Tensor, cell: torch.dtype) -> Tensor:
    """A chunk of codes or floats as a layout holds it."""
    return scales if scales.dtype == cell else scales_of_codes(scales)
