"""An oracle in exact rational arithmetic, written from the definitions of the formats."""

import math
from bisect import bisect_left
from fractions import Fraction

import pytest

# Magnitude of every finite E4M3 code: subnormals m * 2^-9, then (8 + m) * 2^(e - 10).
MAGNITUDES = [
    Fraction(mantissa) * Fraction(2) ** -9
    if exponent == 0
    else (8 + Fraction(mantissa)) * Fraction(2) ** (exponent - 10)
    for exponent in range(16)
    for mantissa in range(8)
][:-1]
# The largest value of a block with each scale code.
LIMITS = [448 * Fraction(2) ** (code - 127) for code in range(255)]


class Oracle:
    """Quantizes one block of Python floats."""

    @staticmethod
    def scale(values: list[float]) -> int:
        if any(math.isnan(value) for value in values):
            return 255
        if any(math.isinf(value) for value in values):
            return 254
        amax = max(abs(Fraction(value)) for value in values)
        return min(bisect_left(LIMITS, amax), 254)

    @staticmethod
    def element(value: float, code: int) -> int:
        if code == 255:
            return 0x7F
        sign = 0x80 if math.copysign(1, value) < 0 else 0
        if math.isinf(value):
            return sign | 0x7E
        scaled = abs(Fraction(value)) / Fraction(2) ** (code - 127)
        above = bisect_left(MAGNITUDES, scaled)
        if above == len(MAGNITUDES):
            return sign | 0x7E
        if MAGNITUDES[above] == scaled:
            return sign | above
        low, high = scaled - MAGNITUDES[above - 1], MAGNITUDES[above] - scaled
        even = above if above % 2 == 0 else above - 1
        return sign | (above - 1 if low < high else above if high < low else even)

    @classmethod
    def block(cls, values: list[float]) -> tuple[int, list[int]]:
        code = cls.scale(values)
        return code, [cls.element(value, code) for value in values]

    @staticmethod
    def value(byte: int, code: int) -> Fraction | None:
        """None for NaN."""
        if code == 255 or byte & 0x7F == 0x7F:
            return None
        sign = -1 if byte & 0x80 else 1
        return sign * MAGNITUDES[byte & 0x7F] * Fraction(2) ** (code - 127)


@pytest.fixture(scope="session")
def oracle() -> type[Oracle]:
    return Oracle
