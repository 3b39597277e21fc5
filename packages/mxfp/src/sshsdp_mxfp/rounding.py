"""Stochastic rounding whose random numbers are a function of what is rounded, and of nothing else.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a
counter into four numbers of 32 bits. The counter is the place of an element in its logical tensor,
so neither chunks, ranks, fragments, devices nor restarts change a bit. The same numbers as
``triton.language.philox``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sshsdp_mxfp.geometry import Rectangle

_LOW = 0xFFFFFFFF


@dataclass(frozen=True)
class Stochastic:
    """Round elements up or down at random, such that the expectation is the exact value.

    The four numbers of counter (column // 4, row, parameter, ordinal) belong to columns 4k .. 4k+3
    of a row; rows count through all matrices of a tensor. 32 bits per element, as float32 to E4M3
    drops 20: with 16 the expectation would not be exact.

    Attributes:
        seed: the key, 64 bits.
        parameter: 32 bits that tell tensors apart.
        ordinal: 32 bits that tell the roundings of one tensor apart; count it up every time.
    """

    seed: int
    parameter: int = 0
    ordinal: int = 0

    def __post_init__(self) -> None:
        for name, width in (("seed", 64), ("parameter", 32), ("ordinal", 32)):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value < 1 << width:
                raise ValueError(f"expected {name} to be an integer of {width} bits, got {value!r}")

    def numbers(self, place: Rectangle) -> Tensor:
        """Random numbers of a rectangle, [rows, columns] of int64, each 0 <= n < 2^32."""
        first, last = place.left // 4, -(-place.right // 4)
        column = torch.arange(first, last, dtype=torch.int64).expand(place.height, -1)
        row = torch.arange(place.top, place.bottom, dtype=torch.int64).unsqueeze(1)
        other = [torch.full((1, 1), value) for value in (self.parameter, self.ordinal)]
        words = philox((column, row, other[0], other[1]), (self.seed & _LOW, self.seed >> 32))
        flat = torch.stack(words, -1).view(place.height, 4 * (last - first))
        return flat[:, place.left - 4 * first :][:, : place.width]


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10.

    Args:
        counter: four int64 tensors that broadcast, 0 <= c < 2^32.
        key: two numbers of 32 bits.

    Returns:
        Four int64 tensors of numbers of 32 bits.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # The products take 64 bits; that int64 wraps leaves all of them right.
        even, odd = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0 = ((odd >> 32) & _LOW) ^ c1 ^ k0
        c2 = ((even >> 32) & _LOW) ^ c3 ^ k1
        c1, c3 = odd & _LOW, even & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return c0, c1, c2, c3
