"""Groups along the contraction: the weight gradients of a mixture of experts."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sshsdp_mxfp.layouts.layout import LayoutPart, MatrixLayout, ScaleLayout, in_sequence
from sshsdp_mxfp.layouts.packed import PackedLayout
from sshsdp_mxfp.layouts.sizes import align_up, check_sizes
from sshsdp_mxfp.layouts.swizzled import SwizzledLayout
from sshsdp_mxfp.tensor import SCALE


@dataclass(frozen=True)
class _KGroupedLayout(ScaleLayout):
    """Matrices of the same rows and of blocks of their own.

    Attributes:
        rows: along M or N.
        blocks: of each group, along its part of K; groups may be empty.
    """

    rows: int
    blocks: tuple[int, ...]

    def __post_init__(self) -> None:
        check_sizes(rows=self.rows)
        for group, blocks in enumerate(self.blocks):
            check_sizes(**{f"blocks of group {group}": blocks})

    @property
    @abstractmethod
    def _matrices(self) -> Sequence[MatrixLayout]:
        """Layouts of the groups."""

    @cached_property
    def parts(self) -> tuple[LayoutPart, ...]:
        """The groups."""
        return in_sequence(self._matrices)

    @property
    def logical_shape(self) -> tuple[int, ...]:
        """[rows, all groups' blocks]."""
        return self.rows, sum(self.blocks)

    @property
    def cell(self) -> torch.dtype:
        """One code."""
        return torch.uint8

    @property
    def alignment(self) -> int:
        """Of the tensor memory accelerator."""
        return 16

    @property
    def words(self) -> int:
        """Four blocks each, the last of each group filled up."""
        return sum(-(-blocks // 4) for blocks in self.blocks)

    def split(self, scales: Tensor, band: int = 1) -> tuple[Tensor, ...]:
        """One matrix per group."""
        self._check_logical(scales, band)
        return torch.split(scales, list(self.blocks), dim=1) if self.blocks else ()


@dataclass(frozen=True)
class KGroupedPackedLayout(_KGroupedLayout):
    """DeepGEMM's packed scales with groups along K (its k_grouped_fp8_gemm_tn_contiguous).

    The operand is int32 [words, rows], contiguous: four codes of a row per word, every group
    starting with a word of its own. DeepGEMM takes at most 128 groups.

    Attributes:
        rows: along M or N, a multiple of 4.
        blocks: of each group.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows % 4:
            raise ValueError(
                f"expected rows that are a multiple of 4, got {self.rows}; "
                f"pad them to {align_up(self.rows, 4)}"
            )
        if len(self.blocks) > 128:
            raise ValueError(f"expected at most 128 groups, got {len(self.blocks)}")

    @property
    def _matrices(self) -> Sequence[MatrixLayout]:
        return [PackedLayout(self.rows, blocks) for blocks in self.blocks]

    @property
    def dtype(self) -> torch.dtype:
        """Four codes."""
        return torch.int32

    @property
    def shape(self) -> tuple[int, ...]:
        """[words, rows]."""
        return self.words, self.rows

    @property
    def stride(self) -> tuple[int, ...]:
        """Of a contiguous matrix."""
        return self.rows, 1


@dataclass(frozen=True)
class KGroupedSwizzledLayout(_KGroupedLayout):
    """The 128x4 swizzle of every group, one behind the other (torch's scaled_grouped_mm).

    The operand is float8_e8m0fnu [rows up to a multiple of 128, 4 * words], contiguous.
    """

    @property
    def _matrices(self) -> Sequence[MatrixLayout]:
        return [SwizzledLayout(self.rows, blocks) for blocks in self.blocks]

    @property
    def dtype(self) -> torch.dtype:
        """One code."""
        return SCALE

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows up to a multiple of 128, 4 * words]."""
        return align_up(self.rows, 128), self.words * 4

    @property
    def stride(self) -> tuple[int, ...]:
        """Of a contiguous matrix."""
        return self.words * 4, 1
