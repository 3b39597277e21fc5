"""How a linear layer quantizes and multiplies: what its autograd function is run with."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from sshsdp_mxfp.batch import QuantizeBatch
from sshsdp_mxfp.formats import Format
from sshsdp_mxfp.fp8_block128 import BLOCK, FP8Block128, FP8Tensor
from sshsdp_mxfp.gemm.block128 import fp8_matmul
from sshsdp_mxfp.gemm.choice import Backend
from sshsdp_mxfp.gemm.grouped import mx_grouped_matmul, mx_grouped_weight_grad
from sshsdp_mxfp.gemm.matmul import mx_matmul, mx_weight_grad
from sshsdp_mxfp.gemm.operand import K_BLOCK, GemmOperand
from sshsdp_mxfp.gemm.weight import QuantizedWeight
from sshsdp_mxfp.kernels import QuantizeJob
from sshsdp_mxfp.kernels import quantize as kernels
from sshsdp_mxfp.layouts import RowGroups
from sshsdp_mxfp.layouts.sizes import align_up
from sshsdp_mxfp.quantize import CPU_OR_CUDA, check_input
from sshsdp_mxfp.tensor import MXTensor

Quantized = TypeVar("Quantized", MXTensor, FP8Tensor)


class LinearPlan(ABC, Generic[Quantized]):
    """Quantization and products of one call of a linear layer."""

    @abstractmethod
    def quantize(
        self, x: Tensor, *, rows: bool, columns: bool, grad: bool = False
    ) -> tuple[Quantized | None, Quantized | None]:
        """Quantize a matrix [tokens, features] along features, along tokens, or both.

        Args:
            x: the input, or the gradient of the output.
            rows: along features, for products that contract those.
            columns: along tokens, padded to whole blocks with zeros.
            grad: whether it is a gradient.
        """

    @abstractmethod
    def forward(self, x: Quantized, dtype: torch.dtype) -> Tensor:
        """The output."""

    @abstractmethod
    def dgrad(self, grad: Quantized, dtype: torch.dtype) -> Tensor:
        """The gradient of the input."""

    @abstractmethod
    def wgrad(
        self,
        grad: Quantized,
        x: Quantized,
        *,
        dtype: torch.dtype | None,
        out: Tensor | None,
        accumulate: bool,
    ) -> Tensor:
        """The gradient of the weight."""


@dataclass(frozen=True)
class MXPlan(LinearPlan[MXTensor]):
    """MX formats, for a matrix or for experts.

    Attributes:
        weight: quantized.
        fmt: of the input, blocks of 1x32.
        grad_fmt: of the gradient of the output, likewise.
        backend: that was chosen.
        groups: of tokens, where the weight is of experts.
    """

    weight: QuantizedWeight[GemmOperand]
    fmt: Format
    grad_fmt: Format
    backend: Backend
    groups: RowGroups | None = None

    def quantize(
        self, x: Tensor, *, rows: bool, columns: bool, grad: bool = False
    ) -> tuple[MXTensor | None, MXTensor | None]:
        """See LinearPlan."""
        check_input(x, CPU_OR_CUDA)
        fmt = self.grad_fmt if grad else self.fmt
        first = MXTensor.empty(x.shape, fmt, device=x.device) if rows else None
        whole, part = self._columns(x, fmt) if columns else (None, None)
        outs = [out for out in (first, part) if out is not None]
        if outs and x.numel():
            job = QuantizeJob(x, outs[0], outs[1] if len(outs) > 1 else None)
            if x.is_cuda:
                for launch in kernels.prepare([job], direct=True):
                    launch.run()
            else:
                QuantizeBatch([job]).run()
        return first, whole

    def _columns(self, x: Tensor, fmt: Format) -> tuple[MXTensor, MXTensor]:
        """A result with whole blocks of tokens, and the part of it that x fills."""
        tokens, features = x.shape
        padded = align_up(tokens, K_BLOCK)
        if self.backend == "torch":  # wants tokens adjacent
            whole = MXTensor.empty((features, padded), fmt, device=x.device).mT
        else:
            turned = replace(fmt, block=(K_BLOCK, 1))
            whole = MXTensor.empty((padded, features), turned, device=x.device)
        if padded == tokens:
            return whole, whole
        whole.codes[tokens:].zero_()
        ragged = replace(whole.format, ragged="partial")
        data = whole.codes[:tokens].view(whole.data.dtype)
        return whole, MXTensor(data, whole.scale, ragged, x.shape)

    def forward(self, x: MXTensor, dtype: torch.dtype) -> Tensor:
        """See LinearPlan."""
        return self._product(x, self.weight.forward, dtype)

    def dgrad(self, grad: MXTensor, dtype: torch.dtype) -> Tensor:
        """See LinearPlan."""
        adjacent = self.backend == "torch"
        weight = self.weight.adjacent_dgrad if adjacent else self.weight.dgrad
        return self._product(grad, weight, dtype)

    def _product(self, a: MXTensor, b: GemmOperand, dtype: torch.dtype) -> Tensor:
        if self.groups is None:
            return mx_matmul(a, b, dtype=dtype, backend=self.backend)
        return mx_grouped_matmul(a, b, self.groups, dtype=dtype, backend=self.backend)

    def wgrad(
        self,
        grad: MXTensor,
        x: MXTensor,
        *,
        dtype: torch.dtype | None,
        out: Tensor | None,
        accumulate: bool,
    ) -> Tensor:
        """See LinearPlan."""
        if self.groups is None:
            return mx_weight_grad(
                grad, x, dtype=dtype, out=out, accumulate=accumulate, backend=self.backend
            )
        return mx_grouped_weight_grad(
            grad, x, self.groups, dtype=dtype, out=out, accumulate=accumulate, backend=self.backend
        )


@dataclass(frozen=True)
class Block128Plan(LinearPlan[FP8Tensor]):
    """FP8Block128.

    Attributes:
        weight: quantized.
        backend: that was chosen.
    """

    weight: QuantizedWeight[FP8Tensor]
    backend: Backend

    def quantize(
        self, x: Tensor, *, rows: bool, columns: bool, grad: bool = False
    ) -> tuple[FP8Tensor | None, FP8Tensor | None]:
        """See LinearPlan; the columns are stored with tokens adjacent, as the kernel wants it."""
        del grad  # the same format
        along = FP8Block128((1, BLOCK))
        missing = -len(x) % BLOCK
        turned = torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing and columns else x
        return (
            along.quantize(x) if rows else None,
            along.quantize(turned.mT).mT if columns else None,
        )

    def forward(self, x: FP8Tensor, dtype: torch.dtype) -> Tensor:
        """See LinearPlan."""
        return fp8_matmul(x, self.weight.forward.mT, dtype=dtype, backend=self.backend)

    def dgrad(self, grad: FP8Tensor, dtype: torch.dtype) -> Tensor:
        """See LinearPlan."""
        adjacent = self.backend == "deep_gemm"
        weight = self.weight.adjacent_dgrad if adjacent else self.weight.dgrad
        return fp8_matmul(grad, weight.mT, dtype=dtype, backend=self.backend)

    def wgrad(
        self,
        grad: FP8Tensor,
        x: FP8Tensor,
        *,
        dtype: torch.dtype | None,
        out: Tensor | None,
        accumulate: bool,
    ) -> Tensor:
        """See LinearPlan."""
        return fp8_matmul(
            grad.mT, x, dtype=dtype, out=out, accumulate=accumulate, backend=self.backend
        )
