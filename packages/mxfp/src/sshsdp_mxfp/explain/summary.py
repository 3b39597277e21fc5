"""What a tensor holds, whatever the format."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sshsdp_mxfp.explain.pieces import pieces

_LOWEST = 1074  # float64 reaches down to 2^-1074


@dataclass(frozen=True)
class Summary:
    """Counts and magnitudes of a tensor.

    Attributes:
        shape: of the tensor.
        dtype: of the tensor.
        zeros: how many elements are 0.
        infinities: how many are infinite.
        nans: how many are NaN.
        largest: the largest finite magnitude, 0 without one.
        smallest: the smallest magnitude that isn't 0, 0 without one.
        exponents: how many magnitudes have each floor(log2(magnitude)); zeros and what isn't
            finite have none.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    zeros: int
    infinities: int
    nans: int
    largest: float
    smallest: float
    exponents: dict[int, int]

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def binades(self) -> float:
        """log2 of the largest over the smallest magnitude."""
        return math.log2(self.largest) - math.log2(self.smallest) if self.smallest else 0.0

    @property
    def unit(self) -> float:
        """The power of two at or below the largest magnitude; in it sums of squares stay finite."""
        return math.ldexp(1.0, math.frexp(self.largest)[1] - 1) if self.largest else 1.0


def summarize(x: Tensor) -> Summary:
    """Count and measure, in chunks.

    Args:
        x: a float tensor on the CPU, of at least one dimension and one element.
    """
    zeros = infinities = nans = 0
    largest, smallest = 0.0, math.inf
    exponents = torch.zeros(_LOWEST + 1024, dtype=torch.int64)
    for part in pieces(x.detach(), (1, 1)):
        magnitudes = part.to(torch.float64).abs().flatten()
        zeros += int((magnitudes == 0).sum())
        infinities += int(magnitudes.isinf().sum())
        nans += int(magnitudes.isnan().sum())
        kept = magnitudes[magnitudes.isfinite() & (magnitudes > 0)]
        if kept.numel():
            largest, smallest = max(largest, float(kept.max())), min(smallest, float(kept.min()))
            shifted = torch.frexp(kept).exponent + (_LOWEST - 1)
            exponents += shifted.bincount(minlength=len(exponents))
    return Summary(
        tuple(x.shape),
        x.dtype,
        zeros,
        infinities,
        nans,
        largest,
        smallest if smallest < math.inf else 0.0,
        {place - _LOWEST: count for place, count in enumerate(exponents.tolist()) if count},
    )
