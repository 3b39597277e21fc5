"""FP8 with float32 scales per 128 elements: what Hopper's GEMMs of DeepGEMM take.

Not an MX format: scales are any floats, so that each element is rounded twice (once when it is
divided), and sums of a kernel are scaled in float32. Values are those of DeepGEMM's own casts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sshsdp_mxfp.elements import E4M3
from sshsdp_mxfp.formats import block_text

BLOCK = 128
_SMALLEST = 2.0**-126  # of scales: their reciprocals are finite, and a block of zeros has one


@dataclass(frozen=True)
class FP8Block128:
    """E4M3 elements whose blocks share a float32 scale, amax / 448.

    Attributes:
        block: (1, 128) for activations, (128, 1) along the other dimension, (128, 128) for
            weights.
    """

    block: tuple[int, int] = (1, BLOCK)

    def __post_init__(self) -> None:
        if self.block not in ((1, BLOCK), (BLOCK, 1), (BLOCK, BLOCK)):
            raise ValueError(
                f"expected a block of (1, {BLOCK}), ({BLOCK}, 1) or ({BLOCK}, {BLOCK}), got "
                f"{self.block!r}"
            )

    def check(self, shape: torch.Size) -> None:
        """Raise if a tensor of this shape can't be cut into blocks.

        Raises:
            ValueError: if it is no matrix, or a size is no multiple of the block.
        """
        if len(shape) != 2:
            raise ValueError(f"expected a matrix, got shape {list(shape)}; flatten it")
        if any(size % step for size, step in zip(shape, self.block, strict=True)):
            padded = [-(-n // step) * step for n, step in zip(shape, self.block, strict=True)]
            raise ValueError(
                f"expected sizes that are multiples of the block {block_text(self.block)}, got "
                f"{list(shape)}; pad it to {padded}"
            )

    def grid_shape(self, shape: torch.Size) -> torch.Size:
        """Shape of the scales."""
        return torch.Size(n // step for n, step in zip(shape, self.block, strict=True))

    def quantize(self, x: Tensor) -> "FP8Tensor":
        """Quantize a matrix.

        Scales of blocks whose amax is below 448 * 2^-126 are 2^-126. A block with an infinity or a
        NaN becomes NaN. Takes temporaries of the tensor's size.

        Args:
            x: float32, bfloat16 or float16 [rows, columns], any strides and device.

        Returns:
            A new tensor whose rows are one behind the other.

        Raises:
            ValueError: for another dtype or shape.
        """
        if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise ValueError(f"expected float32, bfloat16 or float16, got {x.dtype}")
        self.check(x.shape)
        grid = self.grid_shape(x.shape)
        down, across = self.block
        blocks = x.detach().reshape(grid[0], down, grid[1], across).to(torch.float32)
        amax = blocks.abs().amax((1, 3), keepdim=True) if x.numel() else blocks[:, :1, :, :1]
        scale = (amax / E4M3.largest).clamp_min(_SMALLEST)
        # The product may be above 448 by its rounding.
        scaled = (blocks * scale.reciprocal()).clamp(-E4M3.largest, E4M3.largest)
        # Operations keep the memory order of a transposed x; rows are to be adjacent.
        data = scaled.to(E4M3.dtype).view(torch.uint8).contiguous().view(x.shape)
        return FP8Tensor(data.view(E4M3.dtype), scale[:, 0, :, 0], self)


@dataclass(frozen=True, eq=False)
class FP8Tensor:
    """A matrix of E4M3 elements and float32 scales: value = element * scale.

    Attributes:
        data: float8_e4m3fn [rows, columns].
        scale: float32, one per block.
        format: how it was cut.
    """

    data: Tensor
    scale: Tensor
    format: FP8Block128

    def __post_init__(self) -> None:
        self.format.check(self.data.shape)
        expected = self.format.grid_shape(self.data.shape)
        for name, tensor, dtype, shape in (
            ("data", self.data, E4M3.dtype, self.data.shape),
            ("scales", self.scale, torch.float32, expected),
        ):
            if tensor.dtype != dtype or tensor.shape != shape:
                raise ValueError(
                    f"expected {name} of {dtype} and shape {list(shape)}, got {tensor.dtype} and "
                    f"{list(tensor.shape)}"
                )
        if self.data.device != self.scale.device:
            raise ValueError(
                f"expected data and scales on one device, got {self.data.device} and "
                f"{self.scale.device}"
            )

    @property
    def shape(self) -> torch.Size:
        """[rows, columns]."""
        return self.data.shape

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.data.device

    @property
    def mT(self) -> "FP8Tensor":  # noqa: N802
        """The dimensions exchanged, as a view."""
        down, across = self.format.block
        return FP8Tensor(self.data.mT, self.scale.mT, FP8Block128((across, down)))

    def adjacent(self) -> "FP8Tensor":
        """The same with rows one behind the other: itself, or a copy."""
        if self.data.is_contiguous():
            return self
        codes = self.data.view(torch.uint8).contiguous()  # not all operations know 8-bit floats
        return FP8Tensor(codes.view(self.data.dtype), self.scale.contiguous(), self.format)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values, each rounded to float32, then to `dtype`."""
        down, across = self.format.block
        wide = self.scale.repeat_interleave(down, 0).repeat_interleave(across, 1)
        return (self.data.to(torch.float32) * wide).to(dtype)
