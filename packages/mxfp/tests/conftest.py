"""An oracle in exact rational arithmetic, written from the definitions of the formats."""

import math
import os
import subprocess
import sys
from bisect import bisect_left
from fractions import Fraction

import pytest

TWO = Fraction(2)
# Exponent bits, mantissa bits, bias, largest finite code, code in blocks of NaN.
FORMATS = {
    "e4m3": (4, 3, 7, 0x7E, 0x7F),
    "e5m2": (5, 2, 15, 0x7B, 0x7F),
    "e2m3": (2, 3, 1, 0x1F, 0x1F),
    "e3m2": (3, 2, 3, 0x1F, 0x1F),
    "e2m1": (2, 1, 1, 0x07, 0x07),
}


def floor_log2(value: Fraction) -> int:
    """The largest k with 2^k <= value."""
    k = value.numerator.bit_length() - value.denominator.bit_length()
    return k if TWO**k <= value else k - 1


class Oracle:
    """Quantizes one block of Python floats."""

    def __init__(self, name: str = "e4m3", rule: str = "rceil"):
        exponent_bits, self.mantissa_bits, bias, largest, self.nan = FORMATS[name]
        self.rule = rule
        self.sign = 1 << (exponent_bits + self.mantissa_bits)
        steps = 1 << self.mantissa_bits
        self.magnitudes = [
            Fraction(code % steps, steps) * TWO ** (1 - bias)
            if code < steps
            else (1 + Fraction(code % steps, steps)) * TWO ** (code // steps - bias)
            for code in range(largest + 1)
        ]
        self.largest = self.magnitudes[-1]
        # The largest value of a block with each scale code, under "rceil".
        self.limits = [self.largest * TWO ** (code - 127) for code in range(255)]

    def scale(self, values: list[float]) -> int:
        if any(math.isnan(value) for value in values):
            return 255
        if any(math.isinf(value) for value in values):
            return 254
        amax = max(abs(Fraction(value)) for value in values)
        if self.rule == "rceil":
            return min(bisect_left(self.limits, amax), 254)
        if amax == 0:
            return 0
        exponent = floor_log2(amax)
        if self.rule == "ceil" and amax != TWO**exponent:
            exponent += 1
        if self.rule == "even":
            step = TWO ** (exponent - self.mantissa_bits)
            exponent = floor_log2(math.floor(amax / step + Fraction(1, 2)) * step)
        return min(max(exponent - floor_log2(self.largest) + 127, 0), 254)

    def element(self, value: float, code: int) -> int:
        if code == 255:
            return self.nan
        sign = self.sign if math.copysign(1, value) < 0 else 0
        top = len(self.magnitudes) - 1
        if math.isinf(value):
            return sign | top
        scaled = abs(Fraction(value)) / TWO ** (code - 127)
        above = bisect_left(self.magnitudes, scaled)
        if above > top:
            return sign | top
        if self.magnitudes[above] == scaled:
            return sign | above
        low, high = scaled - self.magnitudes[above - 1], self.magnitudes[above] - scaled
        even = above if above % 2 == 0 else above - 1
        return sign | (above - 1 if low < high else above if high < low else even)

    def block(self, values: list[float]) -> tuple[int, list[int]]:
        code = self.scale(values)
        return code, [self.element(value, code) for value in values]

    def value(self, element: int, code: int) -> Fraction | None:
        """None for what isn't finite."""
        magnitude = element & (self.sign - 1)
        if code == 255 or magnitude >= len(self.magnitudes):
            return None
        sign = -1 if element & self.sign else 1
        return sign * self.magnitudes[magnitude] * TWO ** (code - 127)


@pytest.fixture(scope="session")
def oracles() -> type[Oracle]:
    return Oracle


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def in_triton(tmp_path):
    """Runs a script in a process of its own, as Triton reads TRITON_INTERPRET when it decorates."""

    def run(script, interpret, *arguments):
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            env={**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.stdout == "done\n", done.stderr

    return run
