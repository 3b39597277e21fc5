"""The 128x4 swizzle of cuBLAS and of torch's scaled_mm."""

from dataclasses import dataclass

import torch

from sshsdp_mxfp.layouts import formulas
from sshsdp_mxfp.layouts.formulas import Index
from sshsdp_mxfp.layouts.layout import MatrixLayout
from sshsdp_mxfp.layouts.sizes import align_up
from sshsdp_mxfp.tensor import SCALE


@dataclass(frozen=True)
class SwizzledLayout(MatrixLayout):
    """Tiles of 128 rows by 4 blocks in the order of the tensor cores' scale memory (sm_100).

    torch's SwizzleType.SWIZZLE_32_4_4. The operand is float8_e8m0fnu
    [32 * ceil(rows / 128), 16 * ceil(blocks / 4)], contiguous: one row of tiles per 32 rows.
    Layouts of row ranges concatenate only where the ranges start at multiples of 128.
    """

    @property
    def tiles(self) -> int:
        """Tiles in a row of tiles."""
        return -(-self.blocks // 4)

    @property
    def dtype(self) -> torch.dtype:
        """One code."""
        return SCALE

    @property
    def cell(self) -> torch.dtype:
        """One code."""
        return torch.uint8

    @property
    def shape(self) -> tuple[int, ...]:
        """[32 * rows of tiles, 16 * tiles]."""
        return align_up(self.rows, 128) // 4, self.tiles * 16

    @property
    def stacked_shape(self) -> tuple[int, ...]:
        """Flat: torch's scaled_grouped_mm takes [groups, cells] for 3-D weights."""
        return (self.cells,)

    @property
    def stride(self) -> tuple[int, ...]:
        """Of a contiguous matrix."""
        return self.tiles * 16, 1

    @property
    def alignment(self) -> int:
        """Of cuBLAS."""
        return 16

    @property
    def cells(self) -> int:
        """Bytes of whole tiles."""
        return align_up(self.rows, 128) * self.tiles * 4

    @property
    def run(self) -> int:
        """A word."""
        return 4

    def offset(self, row: Index, block: Index) -> Index:
        """See formulas.swizzled_offset."""
        return formulas.swizzled_offset(row, block, self.tiles)

    def position(self, cell: Index) -> tuple[Index, Index]:
        """See formulas.swizzled_position."""
        return formulas.swizzled_position(cell, self.tiles)
