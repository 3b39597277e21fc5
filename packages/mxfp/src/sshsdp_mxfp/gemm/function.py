"""The autograd function of linear layers."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sshsdp_mxfp.fp8_block128 import FP8Tensor
from sshsdp_mxfp.gemm.plan import LinearPlan
from sshsdp_mxfp.tensor import MXTensor


@dataclass(frozen=True, eq=False)
class WeightGrad:
    """Where the gradient of a weight goes, in place of ``weight.grad``.

    Attributes:
        out: of the weight's shape, float32 or bfloat16.
        accumulate: add to what it holds; False overwrites, for the first backward of a round.
    """

    out: Tensor
    accumulate: bool = True


@dataclass(frozen=True, eq=False)
class Call:
    """What the function is run with, besides tensors.

    Attributes:
        plan: how it quantizes and multiplies.
        dtype: of the output.
        grads: whether there will be gradients; inside of the function it can't be told.
        target: see WeightGrad.
        node: what autograd does with the weight's gradient, where there is a target.
    """

    plan: LinearPlan[Any]
    dtype: torch.dtype
    grads: bool
    target: WeightGrad | None = None
    node: Any = None


class Linear(torch.autograd.Function):
    """x [tokens, in], weight, bias [out] or None -> [tokens, out].

    Keeps the input as quantized for the weight's gradient, and the quantized weight. The weight
    itself is only named, so that it gets a gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, call: Call) -> Tensor:
        """Quantize the input for all that needs it, and multiply."""
        plan = call.plan
        wanted = call.grads and ctx.needs_input_grad[1]
        rows, columns = plan.quantize(x, rows=True, columns=wanted)
        result = plan.forward(rows, call.dtype)
        if bias is not None:
            result += bias.to(call.dtype)
        ctx.call, ctx.columns_format = call, None
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        if columns is not None:
            ctx.columns_format, ctx.columns_shape = columns.format, columns.shape
            # As bytes: hooks that copy saved tensors know those.
            scale = columns.scale
            scale = scale.view(torch.uint8) if isinstance(columns, MXTensor) else scale
            ctx.save_for_backward(columns.data.view(torch.uint8), scale)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Quantize the gradient once for both products."""
        (grad,) = grads
        call, (x_dtype, weight_dtype, bias_dtype) = ctx.call, ctx.dtypes
        target, wanted = call.target, ctx.needs_input_grad[1]
        if wanted and target is not None:
            executes = will_execute(call.node)
            # None: asked for by torch.autograd.grad, which has it returned.
            wanted, target = executes is not False, target if executes else None
        rows, columns = call.plan.quantize(
            grad, rows=ctx.needs_input_grad[0], columns=wanted, grad=True
        )
        x_grad = None if rows is None else call.plan.dgrad(rows, x_dtype)
        weight_grad = bias_grad = None
        if columns is not None:
            x = _restore(ctx)
            out, accumulate = (target.out, target.accumulate) if target else (None, False)
            dtype = None if target else weight_dtype
            weight_grad = call.plan.wgrad(columns, x, dtype=dtype, out=out, accumulate=accumulate)
        if bias_dtype is not None and ctx.needs_input_grad[2]:
            wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
            bias_grad = grad.sum(0, dtype=wide).to(bias_dtype)
        return x_grad, None if target else weight_grad, bias_grad, None


def will_execute(node: Any) -> bool | None:
    """Whether the running backward wants what flows into a node; None if it is to be returned.

    ``ctx.needs_input_grad`` is true even where only other gradients were asked for.
    """
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        return None


def _restore(ctx: Any) -> MXTensor | FP8Tensor:
    """The input as it was saved."""
    codes, scale = ctx.saved_tensors
    fmt = ctx.columns_format
    if isinstance(scale, Tensor) and scale.dtype == torch.float32:
        return FP8Tensor(codes.view(torch.float8_e4m3fn), scale, fmt)
    data, scales = codes.view(fmt.element.dtype), scale.view(torch.float8_e8m0fnu)
    return MXTensor(data, scales, fmt, cast("torch.Size", ctx.columns_shape))
