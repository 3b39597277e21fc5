"""Operations whose weight gradients are written straight into g' (paper, section 4.2).

Also known as fused weight-gradient accumulation. The first write of a region in a buffer's
lifetime overwrites, later ones add, so nothing is zeroed, copied or accumulated separately.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from sshsdp_fsdp_runtime.runtime.engine import (
    returns_gradients,
    wants_gradient,
    watch_backward,
)

if TYPE_CHECKING:
    from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle

Gradients = tuple[torch.Tensor | None, ...]


def write_product(gradient: torch.Tensor, first: bool, dy: torch.Tensor, x: torch.Tensor) -> None:
    """Write dW = dy^T x where it is reduced, or add it; both are matrices of [tokens, features]."""
    if first:
        torch.mm(dy.t(), x, out=gradient)
    else:
        torch.addmm(gradient, dy.t(), x, out=gradient)


def write_sum(gradient: torch.Tensor, first: bool, dy: torch.Tensor) -> None:
    """Write db = sum(dy) over tokens where it is reduced, or add it."""
    if first:
        torch.sum(dy, 0, out=gradient)
    else:
        gradient.add_(dy.sum(0))


def differentiable_product(dy: torch.Tensor, handle: "ParameterHandle") -> torch.Tensor:
    """Dx = dy W as a part of a graph, whose backward finds the weight readable."""
    dx = torch.mm(dy, handle.parameter)
    watch_backward(dx, (handle,))
    return dx


def memory_of(y: torch.Tensor, first: int, shape: Sequence[int]) -> torch.Tensor:
    """Columns of y from `first` on, in its memory, as no view of y.

    Outputs of our own functions that are views may not be changed in place. These may: each counts
    its own changes.
    """
    tensor = torch.empty(0, dtype=y.dtype, device=y.device)
    start = y.storage_offset() + first * y.stride(-1)
    return tensor.set_(y.untyped_storage(), start, shape, y.stride())


class DirectLinear(torch.autograd.Function):
    """``y = x W^T + b`` with dW = dy^T x and db = sum(dy) written into g'."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        handle: "ParameterHandle",
        bias_handle: "ParameterHandle | None",
    ) -> torch.Tensor:
        """Compute y; the weight is not saved: backward takes it from the group's buffer."""
        ctx.save_for_backward(x)
        ctx.handle, ctx.bias_handle = handle, bias_handle
        y = functional.linear(x, weight, bias)
        return memory_of(y, 0, y.shape) if y._is_view() else y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Gradients:
        """Dx is returned; dW and db go to g', see `returns_gradients`."""
        (x,) = ctx.saved_tensors
        handle, bias_handle = ctx.handle, ctx.bias_handle
        with torch._C.DisableTorchFunctionSubclass():
            if not handle.weights.ready:
                handle.weights.unshard()
            dy2, x2 = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
            handles = (handle,) if bias_handle is None else (handle, bias_handle)
            if returns_gradients(handles):
                product = differentiable_product(dy2, handle).view(x.shape)
                db = None if bias_handle is None else dy2.sum(0)
                return product, torch.mm(dy2.t(), x2), db, None, None
            if handle.pack is not None:
                handle.pack.calls.sliced_backward += 1
            dx = torch.mm(dy2, handle.weight).view(x.shape) if ctx.needs_input_grad[0] else None
            if ctx.needs_input_grad[1] and wants_gradient(handle):
                gradient, first = handle.passes.claim(handle)
                write_product(gradient, first, dy2, x2)
            if bias_handle is not None and ctx.needs_input_grad[2] and wants_gradient(bias_handle):
                gradient, first = bias_handle.passes.claim(bias_handle)
                write_sum(gradient, first, dy2)
        return dx, None, None, None, None


class DirectEmbedding(torch.autograd.Function):
    """Row lookup whose gradient rows are added into g'."""

    @staticmethod
    def forward(
        ctx: Any,
        index: torch.Tensor,
        weight: torch.Tensor,
        padding_idx: int | None,
        handle: "ParameterHandle",
    ) -> torch.Tensor:
        """Look up rows."""
        ctx.save_for_backward(index)
        ctx.handle, ctx.padding_idx = handle, padding_idx
        return functional.embedding(index, weight, padding_idx)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Gradients:
        """Add rows; the one zero pass of a region that no earlier write covered is listed."""
        (index,) = ctx.saved_tensors
        handle = ctx.handle
        padding = -1 if ctx.padding_idx is None else ctx.padding_idx
        with torch._C.DisableTorchFunctionSubclass():
            if returns_gradients((handle,)):
                rows = handle.spec.shape[0]
                dense = torch.ops.aten.embedding_dense_backward(dy, index, rows, padding, False)
                return None, dense, None, None
            if wants_gradient(handle):
                rows, flat = dy.reshape(-1, dy.shape[-1]), index.reshape(-1)
                if padding >= 0:
                    kept = flat != padding
                    rows, flat = rows[kept], flat[kept]
                gradient, first = handle.passes.claim(handle)
                if first:
                    gradient.zero_()
                gradient.index_add_(0, flat, rows)
        return None, None, None, None


def _handle_of(tensor: Any) -> "ParameterHandle | None":
    """The handle of a sharded parameter that wants a gradient now."""
    handle: ParameterHandle | None = getattr(tensor, "_handle", None)
    if handle is None or handle.passes is None or not tensor.requires_grad:
        return None
    return handle if torch.is_grad_enabled() else None


def _autocast_differs(weight: torch.Tensor) -> bool:
    device = weight.device.type
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) != weight.dtype


def _ordinary(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether our own autograd functions do what the operation would do."""
    return (
        type(x) is torch.Tensor
        and x.dtype == weight.dtype
        and x.layout is torch.strided
        and not x.is_nested
        and not _autocast_differs(weight)
        and not torch._C._are_functorch_transforms_active()
    )


def _linear(
    input: torch.Tensor,  # noqa: A002 (torch's own name, callers may pass it by keyword)
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor | None:
    own: ParameterHandle | None = getattr(weight, "_handle", None)
    pack = None if own is None else own.pack
    ordinary = _ordinary(input, weight)
    if pack is not None:
        assert own is not None
        output = pack.output(own.pack_index, input, bias) if ordinary else None
        if output is not None:
            return output
        pack.calls.sliced_forward += 1
    handle, bias_handle = _handle_of(weight), _handle_of(bias)
    unusual = bias is not None and bias_handle is None and bias.requires_grad
    if handle is None or unusual or not ordinary:
        return None
    result: torch.Tensor = DirectLinear.apply(input, weight, bias, handle, bias_handle)  # type: ignore[no-untyped-call]
    return result


def _embedding(
    input: torch.Tensor,  # noqa: A002 (torch's own name, callers may pass it by keyword)
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001 (torch's signature)
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor | None:
    handle = _handle_of(weight)
    if handle is None or max_norm is not None or scale_grad_by_freq or sparse:
        return None
    if padding_idx is not None and padding_idx < 0:
        padding_idx += handle.spec.shape[0]
    result: torch.Tensor = DirectEmbedding.apply(input, weight, padding_idx, handle)  # type: ignore[no-untyped-call]
    return result


# What takes the place of an operation; each gives None where the operation itself is to run.
DIRECT: dict[Callable[..., Any], Callable[..., torch.Tensor | None]] = {
    functional.linear: _linear,
    functional.embedding: _embedding,
}
