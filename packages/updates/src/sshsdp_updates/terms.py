"""What all ranks must do alike in a step, compared along with the gradient norm."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

_HALF = 1 << 16


class StepTerms:
    """Hyperparameters and clipping: every rank applies its own to its part of the weights.

    They are folded into a number that travels with the next norm. Only equality is asked for, so
    that a sum over ranks is enough: by Cauchy and Schwarz ``n sum(x^2) = sum(x)^2`` holds for equal
    x alone. Halves of 16 bits keep sums over 2^20 ranks exact in float64.
    """

    def __init__(self) -> None:
        self._number = 0

    def add(self, call: str, values: Sequence[Mapping[str, Any]]) -> None:
        """Fold in what a call is going to do, and with which values."""
        plain = [
            {name: v.tolist() if isinstance(v, Tensor) else v for name, v in group.items()}
            for group in values
        ]
        self._number = zlib.crc32(repr((call, plain)).encode(), self._number)

    def summands(self) -> list[float]:
        """What a sum over ranks has to contain of this rank."""
        halves = divmod(self._number, _HALF)
        return [1.0, *(float(power) for half in halves for power in (half, half * half))]

    def check(self, sums: Sequence[float]) -> None:
        """Raise unless the summands of all ranks were equal.

        Raises:
            RuntimeError: on every rank, before anything changes; what was folded in is forgotten,
                so that a loop that mends it can go on.
        """
        ranks, *rest = (int(total) for total in sums)
        pairs = zip(rest[::2], rest[1::2], strict=True)
        if all(ranks * squares == total * total for total, squares in pairs):
            return
        self._number = 0
        raise RuntimeError(
            "expected every rank to clip and step alike, got ranks with other hyperparameters, "
            "another max_norm, or only some that called clip_grad_norm_() or grad_norm(), now or "
            "since the last step; give the same values on every rank and step schedulers "
            "everywhere; nothing was updated in this call"
        )
