"""Scales row by row."""

from dataclasses import dataclass

import torch

from sshsdp_mxfp.layouts import formulas
from sshsdp_mxfp.layouts.formulas import Index
from sshsdp_mxfp.layouts.layout import MatrixLayout
from sshsdp_mxfp.tensor import SCALE


@dataclass(frozen=True)
class PlainLayout(MatrixLayout):
    """A contiguous matrix, as scales come from quantization; what Triton's tl.dot_scaled reads.

    With float32 cells, DeepGEMM's scales of 128x128 blocks on sm_90: one per block in `rows` too.

    Attributes:
        cell: uint8 (E8M0 codes, the operand is float8_e8m0fnu) or float32.
    """

    cell: torch.dtype = torch.uint8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cell not in (torch.uint8, torch.float32):
            raise ValueError(f"expected cells of uint8 or float32, got {self.cell}")

    @property
    def dtype(self) -> torch.dtype:
        """float8_e8m0fnu or float32."""
        return SCALE if self.cell == torch.uint8 else torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows, blocks]."""
        return self.rows, self.blocks

    @property
    def stride(self) -> tuple[int, ...]:
        """Of a contiguous matrix."""
        return self.blocks, 1

    @property
    def alignment(self) -> int:
        """Of one element."""
        return self.cell.itemsize

    @property
    def cells(self) -> int:
        """No padding."""
        return self.rows * self.blocks

    @property
    def run(self) -> int:
        """A row."""
        return max(self.blocks, 1)

    def offset(self, row: Index, block: Index) -> Index:
        """See formulas.plain_offset."""
        return formulas.plain_offset(row, block, self.blocks)

    def position(self, cell: Index) -> tuple[Index, Index]:
        """See formulas.plain_position."""
        return formulas.plain_position(cell, self.blocks)
