"""What kernels ask of operands, checked before anything is launched, by name of the operand."""

from dataclasses import dataclass

from torch import Tensor

from sshsdp_mxfp.gemm.choice import Backend
from sshsdp_mxfp.gemm.operand import GemmOperand
from sshsdp_mxfp.layouts import RowGroups

ALIGNMENT = 16  # bytes of addresses and pitches that tensor memory accelerators and cuBLAS take


@dataclass(frozen=True)
class GemmSizes:
    """The sizes of a product [m, k] x [k, n]."""

    m: int
    n: int
    k: int

    def check(self, backend: Backend, *, k_step: int = 32) -> None:
        """Raise for sizes that a backend can't do; needs no tensors, so plans can ask.

        Raises:
            ValueError: naming the size and the multiple it has to be.
        """
        if backend == "reference":
            return
        if self.k % k_step:
            raise ValueError(
                f"expected K to be a multiple of {k_step} for {backend}, got {self.k}; pad it to "
                f'{-(-self.k // k_step) * k_step}, or use backend="reference"'
            )
        if self.n % ALIGNMENT:
            raise ValueError(
                f"expected N to be a multiple of {ALIGNMENT} for {backend}, got {self.n}; pad it "
                f'to {-(-self.n // ALIGNMENT) * ALIGNMENT}, or use backend="reference"'
            )


def check_adjacent(name: str, operand: GemmOperand, backend: Backend) -> None:
    """Refuse elements that aren't adjacent along the contracted dimension."""
    if operand.data.stride(-1) != 1:
        raise ValueError(
            f"expected {name} with elements adjacent along K for {backend}, got strides "
            f"{operand.data.stride()} of {list(operand.shape)}; quantize the transposed tensor "
            f"(quantize_both(..., transposed=True)), or copy it by GemmOperand.adjacent"
        )


def check_memory(name: str, data: Tensor, backend: Backend) -> None:
    """Refuse elements that a kernel can't address.

    Raises:
        ValueError: if neither dimension is adjacent, matrices of a stack have gaps, or an address
            or a pitch isn't a multiple of 16 bytes.
    """
    *outer, down, across = data.stride()
    rows, columns = data.shape[-2:]
    if 1 not in (down, across):
        raise ValueError(
            f"expected {name} with adjacent elements in rows or in columns for {backend}, got "
            f"strides {data.stride()}; copy it"
        )
    if outer and outer[0] != rows * columns:
        raise ValueError(
            f"expected {name} of matrices one behind the other for {backend}, got strides "
            f"{data.stride()} of {list(data.shape)}; copy it"
        )
    size = data.element_size()
    pitch = (down if across == 1 else across) * size
    for what, value in (("address", data.data_ptr()), ("pitch", pitch)):
        if value % ALIGNMENT:
            raise ValueError(
                f"expected {name} with its {what} at a multiple of {ALIGNMENT} bytes for "
                f"{backend}, got {value}; place or pad it so"
            )


def check_groups(groups: RowGroups, step: int, user: str, *, exactly: bool) -> None:
    """Refuse groups whose places aren't a kernel's."""
    fits = groups.alignment == step if exactly else groups.alignment % step == 0
    if not fits:
        what = "" if exactly else "a multiple of "
        raise ValueError(
            f"expected groups with an alignment of {what}{step} for {user}, got "
            f"{groups.alignment}; make them by RowGroups(sizes, alignment={step})"
        )


def padded_sizes(groups: RowGroups) -> list[int]:
    """Rows of each group with its padding."""
    ends = (*groups.starts[1:], groups.rows)
    return [end - start for start, end in zip(groups.starts, ends, strict=True)]
