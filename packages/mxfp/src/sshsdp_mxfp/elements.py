"""Element formats: what one code of 4, 6 or 8 bits stands for.

A code is sign, exponent and mantissa, from the highest bit down. With bias B and m mantissa bits,
exponent E > 0 stands for (1 + M / 2^m) * 2^(E - B) and E = 0 for M / 2^m * 2^(1 - B).
Source: OCP Microscaling Formats (MX) specification 1.0, section 5.3.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, repr=False)
class Element:
    """An element format, as the numbers that encoders need.

    Attributes:
        name: as in the specification, in lower case.
        exponent_bits: width of the exponent; the bias is 2^(exponent_bits - 1) - 1.
        mantissa_bits: width of the mantissa.
        largest_code: code of the largest finite value; codes above it are infinity or NaN.
        dtype: of stored elements. torch has no type for 6 bits: one code per uint8, high bits zero.
        per_byte: elements in one stored item. Two of 4 bits share a byte along the last dimension,
            the one with the even index in the low half.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    largest_code: int
    dtype: torch.dtype
    per_byte: int = 1

    @property
    def bits(self) -> int:
        """Width of a code, sign included."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is subtracted from a stored exponent."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def largest_exponent(self) -> int:
        """Exponent of the largest finite value: 8 for E4M3, whose largest is 1.75 * 2^8."""
        return (self.largest_code >> self.mantissa_bits) - self.bias

    @property
    def largest(self) -> float:
        """The largest finite value."""
        mantissa = self.largest_code % (1 << self.mantissa_bits) / (1 << self.mantissa_bits)
        return float((1 + mantissa) * 2.0**self.largest_exponent)

    @property
    def smallest(self) -> float:
        """The smallest positive value, a subnormal."""
        return float(2.0 ** (1 - self.bias - self.mantissa_bits))

    @property
    def code_of_nan(self) -> int:
        """Code of every element in a block with a NaN: all bits set but the sign.

        It is NaN in formats that have one, and the largest value in those that have none; the scale
        is NaN anyway.
        """
        return (1 << (self.bits - 1)) - 1

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name.upper()


E4M3 = Element("e4m3", 4, 3, 0x7E, torch.float8_e4m3fn)
E5M2 = Element("e5m2", 5, 2, 0x7B, torch.float8_e5m2)
E2M3 = Element("e2m3", 2, 3, 0x1F, torch.uint8)
E3M2 = Element("e3m2", 3, 2, 0x1F, torch.uint8)
E2M1 = Element("e2m1", 2, 1, 0x07, torch.float4_e2m1fn_x2, per_byte=2)
ELEMENTS = {element.name: element for element in (E4M3, E5M2, E2M3, E3M2, E2M1)}
