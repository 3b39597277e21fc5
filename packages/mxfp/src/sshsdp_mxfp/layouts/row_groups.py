"""Groups of rows in one operand: the tokens of a mixture of experts."""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from sshsdp_mxfp.layouts.layout import MatrixLayout
from sshsdp_mxfp.layouts.sizes import align_up, check_sizes
from sshsdp_mxfp.layouts.write import ScaleWrite


@dataclass(frozen=True)
class RowGroups:
    """Where groups of rows start when each is padded to an alignment (m-grouped contiguous form).

    The operand of scales is any layout of one matrix with `rows` rows. Alignments: DeepGEMM's
    get_mk_alignment_for_contiguous_layout() (128 unless set), 128 for the 128x4 swizzle.

    Attributes:
        sizes: rows of each group; groups may be empty.
        alignment: every group starts at a multiple of it.
    """

    sizes: tuple[int, ...]
    alignment: int = 128

    def __post_init__(self) -> None:
        for group, size in enumerate(self.sizes):
            check_sizes(**{f"size of group {group}": size})
        if self.alignment < 1:
            raise ValueError(f"expected an alignment of at least 1, got {self.alignment}")

    @property
    def starts(self) -> tuple[int, ...]:
        """The first row of each group."""
        padded = (align_up(size, self.alignment) for size in self.sizes)
        return tuple(accumulate(padded, initial=0))[:-1]

    @property
    def rows(self) -> int:
        """Of the whole operand, padding included."""
        return sum(align_up(size, self.alignment) for size in self.sizes)

    def ends(self) -> Tensor:
        """int32 [groups]: the row behind each group's last one (DeepGEMM's psum form)."""
        ends = [start + size for start, size in zip(self.starts, self.sizes, strict=True)]
        return torch.tensor(ends, dtype=torch.int32)

    def row_indices(self) -> Tensor:
        """int32 [rows]: the group of each row, -1 for padding (DeepGEMM's grouped_layout)."""
        indices = torch.full((self.rows,), -1, dtype=torch.int32)
        for group, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            indices[start : start + size] = group
        return indices

    def writes(self, scales: Tensor, layout: MatrixLayout, operand: Tensor) -> list[ScaleWrite]:
        """Writes that spread scales without gaps over the groups' places.

        Args:
            scales: [sum of sizes, blocks].
            layout: of `rows` rows.
            operand: allocated by the layout, so that padding has a legal value.

        Returns:
            One write per group, for write_scales.

        Raises:
            ValueError: for another number of rows.
        """
        if layout.rows != self.rows:
            raise ValueError(f"expected a layout of {self.rows} rows, got {layout.rows}")
        if scales.dim() != 2 or scales.shape[0] != sum(self.sizes):
            raise ValueError(
                f"expected scales of {sum(self.sizes)} rows, got shape {list(scales.shape)}"
            )
        parts = torch.split(scales, list(self.sizes)) if self.sizes else ()
        return [
            ScaleWrite(part, layout, operand, row=start)
            for part, start in zip(parts, self.starts, strict=True)
        ]
