"""Linear layers with gradients, whose products are of quantized operands."""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from sshsdp_mxfp.formats import MXFP8, Format, block_text
from sshsdp_mxfp.fp8_block128 import BLOCK, FP8Block128, FP8Tensor
from sshsdp_mxfp.gemm.choice import Backend, GemmProblem, choose_for
from sshsdp_mxfp.gemm.function import Call, Linear, WeightGrad
from sshsdp_mxfp.gemm.operand import K_BLOCK, GemmOperand
from sshsdp_mxfp.gemm.plan import Block128Plan, LinearPlan, MXPlan
from sshsdp_mxfp.gemm.provider import Kind
from sshsdp_mxfp.gemm.weight import AnyWeight, QuantizedWeight, quantize_weight
from sshsdp_mxfp.layouts import RowGroups


def mx_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    fmt: Format | FP8Block128 = MXFP8(),  # noqa: B008 - frozen
    grad_fmt: Format | None = None,
    quantized: AnyWeight | None = None,
    weight_grad: WeightGrad | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """``x @ weight.T + bias`` with quantized operands, forward and backward.

    Each product has its operands quantized along the dimension that it contracts: the input and
    the gradient of the output along features and along tokens, the weight in blocks of 32x32 that
    serve both directions. What is kept for backward is the quantized input.

    Args:
        x: [..., in], float32, bfloat16 or float16, on CPUs also float64.
        weight: [out, in], both multiples of 32 (FP8Block128: 128).
        bias: [out], added in the output's dtype.
        fmt: of input and weight: an MX format of blocks 1x32, or FP8Block128.
        grad_fmt: of the gradient of the output; default is `fmt`.
        quantized: `quantize_weight` of the weight, to use it several times; it isn't checked
            against the weight, whose values are not read then.
        weight_grad: a buffer that ``backward()`` writes the weight's gradient to; ``weight.grad``
            is left alone.
        backend: as of `mx_matmul`.

    Returns:
        [..., out] in the dtype of x, or of autocast where that is on.

    Raises:
        ValueError: for sizes that are no multiples of the blocks, or formats of other blocks.
        BackendError: if a backend was named that can't do it on this device.
    """
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"expected x [..., in] and a weight [out, in], got {list(x.shape)} and "
            f"{list(weight.shape)}"
        )
    plan = _plan(x, weight, fmt, grad_fmt, quantized, backend, None)
    flat = x.reshape(-1, x.shape[-1])
    call = _call(x, weight, plan, weight_grad)
    result = cast("Tensor", Linear.apply(flat, weight, bias, call))  # type: ignore[no-untyped-call]
    return result.view(*x.shape[:-1], weight.shape[0])


def mx_grouped_linear(
    x: Tensor,
    weight: Tensor,
    groups: RowGroups,
    *,
    fmt: Format = MXFP8(),  # noqa: B008 - frozen
    grad_fmt: Format | None = None,
    quantized: AnyWeight | None = None,
    weight_grad: WeightGrad | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """`mx_linear` of each group of rows with a weight of its own: experts and their tokens.

    Args:
        x: [groups.rows, in]; padding between groups holds zeros.
        weight: [groups, out, in], both sizes multiples of 32.
        groups: where rows of which group are, at an alignment that is a multiple of 32 (kernels:
            128). Groups may be empty; their weights get gradients of zeros.
        fmt: as of `mx_linear`, MX only; likewise the rest.
        grad_fmt: see above.
        quantized: see above.
        weight_grad: see above.
        backend: see above. Kernels round outputs and torch's weight gradients to bfloat16 first.

    Returns:
        [groups.rows, out], zeros in padding.

    Raises:
        ValueError: see `mx_linear`.
        BackendError: if a backend was named that can't do it on this device.
    """
    if weight.dim() != 3 or x.shape != (groups.rows, weight.shape[2]):
        raise ValueError(
            f"expected x [{groups.rows}, in] and a weight [{len(groups.sizes)}, out, in], got "
            f"{list(x.shape)} and {list(weight.shape)}"
        )
    if isinstance(fmt, FP8Block128):
        raise ValueError("expected an MX format for groups, got FP8Block128; use MXFP8()")
    if groups.alignment % K_BLOCK:
        raise ValueError(
            f"expected groups with an alignment that is a multiple of {K_BLOCK}, got "
            f"{groups.alignment}: a block of 32 tokens would have rows of two groups"
        )
    plan = _plan(x, weight, fmt, grad_fmt, quantized, backend, groups)
    call = _call(x, weight, plan, weight_grad)
    return cast("Tensor", Linear.apply(x, weight, None, call))  # type: ignore[no-untyped-call]


def _plan(
    x: Tensor,
    weight: Tensor,
    fmt: Format | FP8Block128,
    grad_fmt: Format | None,
    quantized: AnyWeight | None,
    backend: Backend | None,
    groups: RowGroups | None,
) -> LinearPlan[Any]:
    if x.device != weight.device and quantized is None:
        raise ValueError(f"expected a weight on {x.device} where x is, got {weight.device}")
    kind: Kind = "dense" if groups is None else "grouped"
    if isinstance(fmt, FP8Block128):
        if grad_fmt is not None or fmt.block != (1, BLOCK):
            raise ValueError("expected FP8Block128() alone: it has one format for gradients too")
        problem = GemmProblem(kind, blocks="fp8_block128")
        chosen = choose_for(x.device, problem, backend)
        ready = quantized or quantize_weight(weight, fmt)
        _check_weight(ready, weight, FP8Tensor)
        return Block128Plan(cast("QuantizedWeight[FP8Tensor]", ready), chosen)
    fmt = _activation("fmt", fmt)
    grads = _activation("grad_fmt", grad_fmt or fmt)
    chosen = _chosen(x.device, kind, fmt, grads, backend)
    ready = quantized or quantize_weight(weight, fmt)
    _check_weight(ready, weight, GemmOperand)
    return MXPlan(cast("QuantizedWeight[GemmOperand]", ready), fmt, grads, chosen, groups)


def _chosen(
    device: torch.device, kind: Kind, fmt: Format, grads: Format, backend: Backend | None
) -> Backend:
    """One backend for all three products, so that none of them fails in backward."""
    wgrad: Kind = "k_grouped" if kind == "grouped" else "dense"
    problems = (
        GemmProblem(kind, (fmt.element, fmt.element)),
        GemmProblem(kind, (grads.element, fmt.element)),
        GemmProblem(wgrad, (grads.element, fmt.element)),
    )
    order: list[Backend] = ["deep_gemm", "torch", "reference"]
    wishes = [choose_for(device, problem, backend) for problem in problems]
    return max(wishes, key=order.index)


def _activation(name: str, fmt: Format) -> Format:
    if fmt.block != (1, K_BLOCK):
        raise ValueError(
            f"expected {name} with blocks of 1x{K_BLOCK}, got {block_text(fmt.block)}: what other "
            f"products need follows from it"
        )
    return replace(fmt, ragged="refuse")


def _check_weight(ready: AnyWeight, weight: Tensor, kind: type) -> None:
    if not isinstance(ready.forward, kind):
        raise TypeError(
            f"expected a weight quantized as fmt says, got one of {type(ready.forward).__name__}; "
            f"make it by quantize_weight with the same fmt"
        )
    if ready.shape != weight.shape:
        raise ValueError(
            f"expected a quantized weight of shape {list(weight.shape)}, got {list(ready.shape)}"
        )


def _call(x: Tensor, weight: Tensor, plan: LinearPlan[Any], target: WeightGrad | None) -> Call:
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    grads = torch.is_grad_enabled()
    if target is None or not (weight.requires_grad and grads):
        return Call(plan, dtype, grads)
    out = target.out
    known = out.dtype in (torch.float32, torch.bfloat16)
    if out.shape != weight.shape or not known or out.device != x.device:
        raise ValueError(
            f"expected weight_grad of shape {list(weight.shape)} in float32 or bfloat16 on "
            f"{x.device}, got {list(out.shape)} in {out.dtype} on {out.device}"
        )
    return Call(plan, dtype, grads, target, torch.autograd.graph.get_gradient_edge(weight).node)
