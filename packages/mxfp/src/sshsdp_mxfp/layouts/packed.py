"""DeepGEMM's packed UE8M0 scales for sm_100."""

from dataclasses import dataclass

import torch

from sshsdp_mxfp.layouts import formulas
from sshsdp_mxfp.layouts.formulas import Index
from sshsdp_mxfp.layouts.mn_major import MNMajorLayout
from sshsdp_mxfp.layouts.sizes import align_up


@dataclass(frozen=True)
class PackedLayout(MNMajorLayout):
    """Four E8M0 codes per int32 along K, MN-major, columns at multiples of 16 bytes.

    The operand is int32 [rows, ceil(blocks / 4)] with strides (1, pitch), as DeepGEMM's
    get_mn_major_tma_aligned_packed_ue8m0_tensor makes it and as its GEMMs take it without a
    further pass. Bytes beyond the last block, and the rows between `rows` and `pitch` that the
    operand doesn't reach, are 0.
    """

    @property
    def dtype(self) -> torch.dtype:
        """Four codes."""
        return torch.int32

    @property
    def cell(self) -> torch.dtype:
        """One code."""
        return torch.uint8

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows, ceil(blocks / 4)]."""
        return self.rows, -(-self.blocks // 4)

    @property
    def cells(self) -> int:
        """Bytes."""
        return self.pitch * align_up(self.blocks, 4)

    @property
    def run(self) -> int:
        """A word."""
        return 4

    def offset(self, row: Index, block: Index) -> Index:
        """See formulas.packed_offset."""
        return formulas.packed_offset(row, block, self.pitch)

    def position(self, cell: Index) -> tuple[Index, Index]:
        """See formulas.packed_position."""
        return formulas.packed_position(cell, self.pitch)
