"""Hands fused CPU kernels whole vector registers only.

torch's fused kernels update the last few elements of a tensor, those that don't fill a register, by
scalar instructions that round differently. Which elements are last depends on where a tensor is
cut; so all of them are moved into one tensor that is filled up, and every element of every cut
takes the same path.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_BYTES = 64  # the widest register, and a multiple of all others


class WholeVectors:
    """Fragments of several fields as whole vectors, and the way back.

    Attributes:
        fields: per field, tensors whose lengths are multiples of a register: views of the
            fragments and, last, all remainders in one tensor, where there are any.
    """

    fields: tuple[tuple[Tensor, ...], ...]

    def __init__(self, *fields: Sequence[Tensor]) -> None:
        """Split `fields`; the fragments at one position are equally long."""
        self._given = fields
        width = _BYTES // fields[0][0].element_size()
        self._rests = [fragment.numel() % width for fragment in fields[0]]
        self._filled = any(self._rests) and fields[0][0].device.type == "cpu"
        if not self._filled:
            self.fields = tuple(tuple(field) for field in fields)
            return
        fill = -sum(self._rests) % width
        self.fields = tuple(
            (
                *(f[: f.numel() - r] if r else f for f, r in zip(field, self._rests, strict=True)),
                torch.cat([*self._remainders(field), field[0].new_zeros(fill)]),
            )
            for field in fields
        )

    def write_back(self, *indexes: int) -> None:
        """Copy the remainders of these fields, which a kernel has changed, where they are from."""
        if not self._filled:
            return
        for index in indexes:
            start = 0
            for remainder in self._remainders(self._given[index]):
                stop = start + remainder.numel()
                remainder.copy_(self.fields[index][-1][start:stop])
                start = stop

    def _remainders(self, field: Sequence[Tensor]) -> list[Tensor]:
        return [f[f.numel() - r :] for f, r in zip(field, self._rests, strict=True) if r]
