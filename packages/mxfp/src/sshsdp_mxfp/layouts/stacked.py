"""Equal matrices of scales, one behind the other."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sshsdp_mxfp.layouts.layout import LayoutPart, MatrixLayout, ScaleLayout, in_sequence
from sshsdp_mxfp.layouts.sizes import check_sizes


@dataclass(frozen=True)
class StackedLayout(ScaleLayout):
    """One operand with a leading dimension of groups: expert weights, and the masked form.

    In DeepGEMM's masked form `each` has the most rows that a group may have; rows beyond a group's
    own are padding and hold a legal value if the operand was allocated here and nothing else wrote
    there.

    Attributes:
        each: the layout of one group.
        groups: how many.
    """

    each: MatrixLayout
    groups: int

    def __post_init__(self) -> None:
        check_sizes(groups=self.groups)

    @cached_property
    def parts(self) -> tuple[LayoutPart, ...]:
        """The groups."""
        return in_sequence([self.each] * self.groups)

    @property
    def logical_shape(self) -> tuple[int, ...]:
        """[groups, rows, blocks]."""
        return self.groups, *self.each.logical_shape

    @property
    def dtype(self) -> torch.dtype:
        """As of one group."""
        return self.each.dtype

    @property
    def cell(self) -> torch.dtype:
        """As of one group."""
        return self.each.cell

    @property
    def shape(self) -> tuple[int, ...]:
        """[groups, ...]."""
        return self.groups, *self.each.stacked_shape

    @property
    def stride(self) -> tuple[int, ...]:
        """One group's storage, then its own strides."""
        inner = self.each.stride[-len(self.each.stacked_shape) :]
        return self.each.nbytes // self.dtype.itemsize, *inner

    @property
    def alignment(self) -> int:
        """As of one group, whose size is a multiple of it."""
        return self.each.alignment

    def split(self, scales: Tensor, band: int = 1) -> tuple[Tensor, ...]:
        """One matrix per group."""
        self._check_logical(scales, band)
        return scales.unbind(0)
