"""What kernels are asked to quantize."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sshsdp_mxfp.formats import Format, block_text
from sshsdp_mxfp.kernels.launch import check_device
from sshsdp_mxfp.rounding import Stochastic
from sshsdp_mxfp.tensor import MXTensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
LARGEST = 128  # rows or columns of a block


@dataclass(frozen=True, eq=False, slots=True)
class QuantizeJob:
    """A tensor, and the one or two quantized tensors that it becomes by being read once.

    Attributes:
        x: float32, bfloat16 or float16 (on CPUs float64 too), any strides.
        out: where to write to, of x's shape. What is adjacent in memory may be rows or columns.
        other: a second one of the same shape, elements and rule, with blocks and strides of its
            own: blocks along the other dimension, or the same ones in a transposed memory order
            (``MXTensor.empty((k, n), fmt).mT``).
        rounding: as of `quantize`; the same random numbers serve both.
    """

    x: Tensor
    out: MXTensor
    other: MXTensor | None = None
    rounding: Stochastic | None = None

    @property
    def outs(self) -> tuple[MXTensor, ...]:
        """One or two."""
        return (self.out,) if self.other is None else (self.out, self.other)

    def check(self) -> None:
        """Raise if the tensors don't belong together.

        Raises:
            ValueError: for another shape, device, element format or rule.
        """
        for out in self.outs:
            if out.shape != self.x.shape or out.device != self.x.device:
                raise ValueError(
                    f"expected out of shape {list(self.x.shape)} on {self.x.device}, got "
                    f"{list(out.shape)} on {out.device}; make it by MXTensor.empty"
                )
        first, last = self.outs[0].format, self.outs[-1].format
        if (first.element, first.rule) != (last.element, last.rule):
            raise ValueError(
                f"expected both results with the same elements and rule, got {first} and {last}; "
                f"use a job for each"
            )

    def check_kernel(self) -> None:
        """Raise for what kernels can't do.

        Raises:
            ValueError: for another dtype, block or size, or results without adjacent elements.
            MissingTritonError: if Triton isn't installed.
        """
        tensors = [part for out in self.outs for part in (out.codes, out.scale_codes)]
        device = check_device(self.x, *tensors)
        check_dtype(self.x)
        for out in self.outs:
            check_blocks(out.format, device)
            strides = out.codes.stride()[-2:]
            if len(strides) == 2 and 1 not in strides and 1 not in out.codes.shape[-2:]:
                raise ValueError(
                    f"expected out with adjacent elements in rows or in columns, got strides "
                    f"{out.codes.stride()}; quantize into a new tensor and copy it"
                )


def check_dtype(x: Tensor) -> None:
    """Raise for floats that kernels can't read."""
    if x.dtype not in FLOATS:
        names = ", ".join(map(str, FLOATS))
        raise ValueError(f"expected {names} on {x.device}, got {x.dtype}; use the CPU for it")


def check_blocks(fmt: Format, device: torch.device) -> None:
    """Raise for blocks that aren't made for tiles."""
    if not all(size & (size - 1) == 0 and size <= LARGEST for size in fmt.block):
        raise ValueError(
            f"expected blocks of powers of 2 up to {LARGEST} on {device}, got "
            f"{block_text(fmt.block)}; use the CPU for it"
        )
