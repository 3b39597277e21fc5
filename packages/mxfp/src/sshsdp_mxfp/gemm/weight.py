"""Weights, quantized once for both directions."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Generic, TypeVar

import torch
from torch import Tensor

from sshsdp_mxfp.formats import Format
from sshsdp_mxfp.fp8_block128 import BLOCK, FP8Block128, FP8Tensor
from sshsdp_mxfp.gemm.operand import K_BLOCK, GemmOperand
from sshsdp_mxfp.quantize import quantize

Operand = TypeVar("Operand", GemmOperand, FP8Tensor)


class QuantizedWeight(Generic[Operand]):
    """What the forward pass multiplies by, and what the gradient of the input is made with.

    Both are of the same bytes: blocks are square. It doesn't follow its weight: make a new one
    after each update.

    Args:
        forward: contracts over the input features, [out, in] or [groups, out, in].
        dgrad: contracts over the output features, [in, out] or [groups, in, out]; or what makes
            it, called when it is first needed.
    """

    def __init__(self, forward: Operand, dgrad: Operand | Callable[[], Operand]) -> None:
        self.forward: Operand = forward
        self._dgrad: Operand | Callable[[], Operand] = dgrad

    @property
    def shape(self) -> torch.Size:
        """Of the weight."""
        return self.forward.shape

    @cached_property
    def dgrad(self) -> Operand:
        """See the class."""
        return self._dgrad if isinstance(self._dgrad, GemmOperand | FP8Tensor) else self._dgrad()

    @cached_property
    def adjacent_dgrad(self) -> Operand:
        """The same with output features adjacent, for backends that take nothing else: a copy."""
        return self.dgrad.adjacent()


AnyWeight = QuantizedWeight[GemmOperand] | QuantizedWeight[FP8Tensor]


def quantize_weight(weight: Tensor, fmt: Format | FP8Block128) -> AnyWeight:
    """Quantize a weight once for forward and backward, and for any number of uses.

    Args:
        weight: [out, in], or [groups, out, in] for experts; both multiples of 32 (128).
        fmt: element and rule of a block format, whose blocks become 32x32; or FP8Block128.

    Raises:
        ValueError: for sizes that are no multiples of the blocks.
    """
    weight = weight.detach()
    if isinstance(fmt, FP8Block128):
        fp8 = FP8Block128((BLOCK, BLOCK)).quantize(weight)
        return QuantizedWeight(fp8, fp8.mT)
    mx = quantize(weight, replace(fmt, block=(K_BLOCK, K_BLOCK), ragged="refuse"))
    return QuantizedWeight(GemmOperand(mx), lambda: GemmOperand(mx, -2))
