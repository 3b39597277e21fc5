"""One side of a GEMM: elements and scales, seen as [rows, contracted dimension]."""

from functools import cached_property

import torch
from torch import Tensor

from sshsdp_mxfp.dequantize import dequantize
from sshsdp_mxfp.elements import Element
from sshsdp_mxfp.formats import MXFP8, block_text
from sshsdp_mxfp.layouts import (
    MatrixLayout,
    ScaleLayout,
    StackedLayout,
    pack_scales,
    unpack_scales,
)
from sshsdp_mxfp.tensor import MXTensor

K_BLOCK = 32
_EIGHT_BITS = {element.dtype: element for element in MXFP8.elements}


class GemmOperand:
    """A quantized matrix, or a stack of them, with the scales that kernels want of it, made once.

    Args:
        tensor: elements and scales, blocks of 32 along the contracted dimension.
        axis: the contracted dimension: -1 (columns) or -2 (rows).

    Attributes:
        shape: [rows, K] or [groups, rows, K], whichever dimension is contracted.
        element: of what it consists.
        device: where it is.

    Raises:
        ValueError: for another axis or number of dimensions, or blocks of another size along it.
    """

    def __init__(self, tensor: MXTensor, axis: int = -1) -> None:
        if axis not in (-1, -2):
            raise ValueError(f"expected an axis of -1 (columns) or -2 (rows), got {axis}")
        if len(tensor.shape) not in (2, 3):
            raise ValueError(
                f"expected a matrix or a stack of matrices, got shape {list(tensor.shape)}"
            )
        blocks = tensor.format.block
        if blocks[axis] != K_BLOCK:
            place = "columns" if axis == -1 else "rows"
            raise ValueError(
                f"expected blocks of {K_BLOCK} along {place}, which are contracted, got blocks of "
                f"{block_text(blocks)}; quantize it along that dimension"
            )
        *groups, rows, columns = tensor.shape
        self._tensor: MXTensor | None = tensor
        self._axis = axis
        self._ready: dict[ScaleLayout, Tensor] = {}
        self.shape = torch.Size(
            (*groups, rows, columns) if axis == -1 else (*groups, columns, rows)
        )
        self.element: Element = tensor.format.element
        self.device = tensor.device

    @classmethod
    def laid_out(cls, data: Tensor, scales: Tensor, layout: ScaleLayout) -> "GemmOperand":
        """An operand whose scales are in a kernel's layout, and nowhere else.

        Args:
            data: elements of 8 bits [rows, K] or [groups, rows, K], any strides.
            scales: as `layout` describes them.
            layout: of [..., rows, ceil(K / 32)] scales.

        Raises:
            ValueError: for other dtypes or devices, or a layout of another size.
        """
        if data.dtype not in _EIGHT_BITS or data.dim() not in (2, 3):
            raise ValueError(
                f"expected [rows, K] or [groups, rows, K] of {' or '.join(map(str, _EIGHT_BITS))}, "
                f"got {list(data.shape)} of {data.dtype}"
            )
        expected = (*data.shape[:-1], -(-data.shape[-1] // K_BLOCK))
        if layout.logical_shape != expected:
            raise ValueError(
                f"expected a layout of {list(expected)} scales for elements of shape "
                f"{list(data.shape)}, got {list(layout.logical_shape)}"
            )
        layout.check(scales)
        if scales.device != data.device:
            raise ValueError(f"expected scales on {data.device}, got {scales.device}")
        self = cls.__new__(cls)
        self._tensor, self._axis, self._ready = None, -1, {layout: scales}
        self.shape, self.element = data.shape, _EIGHT_BITS[data.dtype]
        self.device, self.data = data.device, data
        return self

    @cached_property
    def data(self) -> Tensor:
        """Elements as a view of `shape`.

        Raises:
            ValueError: for elements of less than 8 bits, which no kernel here takes.
        """
        if self.element not in MXFP8.elements:
            raise ValueError(
                f"expected elements of 8 bits (E4M3 or E5M2) for a kernel, got {self.element!r}; "
                f'use backend="reference" for them'
            )
        return self.tensor.data if self._axis == -1 else self.tensor.data.mT

    @property
    def tensor(self) -> MXTensor:
        """Elements and plain scales; read out of a kernel's layout where there are no others."""
        if self._tensor is None:
            (layout, scales), *_ = self._ready.items()
            fmt = MXFP8((1, K_BLOCK), self.element, ragged="partial")
            self._tensor = MXTensor(self.data, unpack_scales(scales, layout), fmt, self.shape)
        return self._tensor

    @property
    def rows(self) -> int:
        """Of each matrix."""
        return int(self.shape[-2])

    @property
    def k(self) -> int:
        """Length of the contracted dimension."""
        return int(self.shape[-1])

    def values(self, dtype: torch.dtype) -> Tensor:
        """What it stands for, of `shape`: a new tensor, or a transposed view of one."""
        plain = dequantize(self.tensor, dtype)
        return plain if self._axis == -1 else plain.mT

    def scales(self, kind: type[MatrixLayout]) -> Tensor:
        """The scales in a layout, stacked for a stack of matrices; made when first asked for."""
        each = kind(self.rows, -(-self.k // K_BLOCK))
        return self.scales_as(each if len(self.shape) == 2 else StackedLayout(each, self.shape[0]))

    def scales_as(self, layout: ScaleLayout) -> Tensor:
        """The scales in a layout of this size; made when first asked for."""
        if layout not in self._ready:
            codes, block = self.tensor.scale_codes, self.tensor.format.block
            grid, band = (codes, block[0]) if self._axis == -1 else (codes.mT, block[1])
            self._ready[layout] = pack_scales(grid, layout, band=band)
        return self._ready[layout]

    def adjacent(self) -> "GemmOperand":
        """The same with elements adjacent along K: itself, or one with a copy of its elements."""
        if self.data.stride(-1) == 1:
            return self
        # Copied as bytes: not all operations know 8-bit floats.
        data = self.data.view(torch.uint8).contiguous().view(self.data.dtype)
        old = self.tensor
        stored = data if self._axis == -1 else data.mT
        result = GemmOperand(MXTensor(stored, old.scale, old.format, old.shape), self._axis)
        result._ready = self._ready
        return result


def as_operand(tensor: MXTensor | GemmOperand, axis: int, name: str) -> GemmOperand:
    """An operand of a quantized tensor; itself if it is one.

    Raises:
        TypeError: for anything else.
        ValueError: as GemmOperand does, with the operand's name.
    """
    if isinstance(tensor, GemmOperand):
        return tensor
    if not isinstance(tensor, MXTensor):
        raise TypeError(
            f"expected {name} to be an MXTensor or a GemmOperand, got {type(tensor).__name__}; "
            f"make one by quantize"
        )
    try:
        return GemmOperand(tensor, axis)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
