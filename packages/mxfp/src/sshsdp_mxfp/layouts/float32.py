"""DeepGEMM's FP32 scales."""

from dataclasses import dataclass

import torch

from sshsdp_mxfp.layouts import formulas
from sshsdp_mxfp.layouts.formulas import Index
from sshsdp_mxfp.layouts.mn_major import MNMajorLayout


@dataclass(frozen=True)
class Float32Layout(MNMajorLayout):
    """One float per scale, MN-major, columns at multiples of 16 bytes.

    The operand is float32 [rows, blocks] with strides (1, pitch), as DeepGEMM's
    get_mn_major_tma_aligned_tensor makes it: on sm_90 one scale per 128 elements of K, of any
    positive value. E8M0 codes become powers of two; code 0 (2^-127) is a subnormal that
    DeepGEMM refuses where it packs floats itself (sm_100): use PackedLayout there.
    """

    @property
    def dtype(self) -> torch.dtype:
        """Of the operand."""
        return torch.float32

    @property
    def cell(self) -> torch.dtype:
        """One scale."""
        return torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows, blocks]."""
        return self.rows, self.blocks

    @property
    def cells(self) -> int:
        """Floats."""
        return self.pitch * self.blocks

    def offset(self, row: Index, block: Index) -> Index:
        """See formulas.float32_offset."""
        return formulas.float32_offset(row, block, self.pitch)

    def position(self, cell: Index) -> tuple[Index, Index]:
        """See formulas.float32_position."""
        return formulas.float32_position(cell, self.pitch)
