"""Whether the values of a checkpoint look right."""

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Health:
    """Of the values of one tensor, or of several.

    Attributes:
        elements: all of them.
        not_finite: how many are inf or NaN.
        largest: absolute value among the others.
        square_sum: of the others.
    """

    elements: int = 0
    not_finite: int = 0
    largest: float = 0.0
    square_sum: float = 0.0

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Health":
        """Look at every element."""
        values = tensor.detach().reshape(-1).to(torch.float64)
        finite = values[values.isfinite()]
        return cls(
            elements=values.numel(),
            not_finite=values.numel() - finite.numel(),
            largest=float(finite.abs().max()) if finite.numel() else 0.0,
            square_sum=float(finite.square().sum()),
        )

    def __add__(self, other: "Health") -> "Health":
        return Health(
            self.elements + other.elements,
            self.not_finite + other.not_finite,
            max(self.largest, other.largest),
            self.square_sum + other.square_sum,
        )

    @property
    def rms(self) -> float:
        """Root of the mean square of finite elements; 0 where there are none."""
        finite = self.elements - self.not_finite
        return math.sqrt(self.square_sum / finite) if finite else 0.0
