"""What DeepGEMM's layouts have in common."""

from dataclasses import dataclass

from sshsdp_mxfp.layouts.layout import MatrixLayout
from sshsdp_mxfp.layouts.sizes import align_up


@dataclass(frozen=True)
class MNMajorLayout(MatrixLayout):
    """Rows are neighbours; columns of 4-byte elements begin at multiples of 16 bytes."""

    @property
    def pitch(self) -> int:
        """Elements of the operand from one column to the next."""
        return align_up(self.rows, 4)

    @property
    def stride(self) -> tuple[int, ...]:
        """(1, pitch)."""
        return 1, self.pitch

    @property
    def alignment(self) -> int:
        """Of the tensor memory accelerator."""
        return 16
