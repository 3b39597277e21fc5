"""Quantized tensors: elements and the scales of their blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

ELEMENT = torch.float8_e4m3fn
SCALE = torch.float8_e8m0fnu
BLOCKS = ((32, 32), (1, 32))


@dataclass(frozen=True, eq=False)
class MXTensor:
    """Elements of 8 bits with one power-of-two scale per block: value = element * scale.

    Attributes:
        data: float8_e4m3fn, the logical shape.
        scale: float8_e8m0fnu; the logical shape with the last two sizes divided by the block's,
            e.g. [rows / 32, columns / 32] for blocks of 32x32. Code b stands for 2^(b - 127), 255
            for NaN.
        block: (32, 32) or (1, 32), rows by columns of the last two dimensions.
    """

    data: Tensor
    scale: Tensor
    block: tuple[int, int]

    def __post_init__(self) -> None:
        grid = grid_shape(self.data.shape, self.block)
        if self.data.dtype != ELEMENT:
            raise ValueError(f"expected data of {ELEMENT}, got {self.data.dtype}")
        if self.scale.dtype != SCALE:
            raise ValueError(
                f"expected scales of {SCALE}, got {self.scale.dtype}; a uint8 tensor of codes "
                f"becomes one by .view({SCALE})"
            )
        if tuple(self.scale.shape) != grid:
            raise ValueError(
                f"expected scales of shape {list(grid)} for data of shape "
                f"{list(self.data.shape)} in blocks of {_text(self.block)}, "
                f"got {list(self.scale.shape)}"
            )

    @classmethod
    def empty(cls, shape: Sequence[int], block: tuple[int, int]) -> Self:
        """A tensor with undefined contents, to quantize into.

        Raises:
            ValueError: if the shape is no multiple of the block.
        """
        scale = torch.empty(grid_shape(shape, block), dtype=torch.uint8).view(SCALE)
        return cls(torch.empty(tuple(shape), dtype=ELEMENT), scale, block)

    @property
    def shape(self) -> torch.Size:
        """The logical shape."""
        return self.data.shape


def grid_shape(shape: Sequence[int], block: tuple[int, int]) -> tuple[int, ...]:
    """Shape of the scales of a tensor.

    Raises:
        ValueError: if the block is unknown or doesn't fit the shape.
    """
    if block not in BLOCKS:
        known = " or ".join(map(str, BLOCKS))
        raise ValueError(f"expected a block of {known}, got {block}")
    rows, columns = block
    if rows > 1 and len(shape) != 2:
        raise ValueError(
            f"expected 2 dimensions for blocks of {_text(block)}, got shape {list(shape)}; "
            f"quantize matrices one by one"
        )
    if not shape:
        raise ValueError(f"expected at least 1 dimension for blocks of {_text(block)}, got none")
    *leading, last = shape
    if last % columns or (rows > 1 and leading[0] % rows):
        padded = [-(-size // step) * step for size, step in zip(shape[-2:], block, strict=False)]
        if len(shape) == 1:
            padded = [-(-last // columns) * columns]
        raise ValueError(
            f"expected sizes that are multiples of the block {_text(block)}, got shape "
            f"{list(shape)}; pad it to {[*shape[:-2], *padded]}"
        )
    if rows > 1:
        leading = [leading[0] // rows]
    return (*leading, last // columns)


def _text(block: tuple[int, int]) -> str:
    return "x".join(map(str, block))
