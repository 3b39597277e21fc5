"""Products of FP8Block128 matrices: DeepGEMM's recipes of 128 on sm_90, or float32."""

import torch
from torch import Tensor

from sshsdp_mxfp.fp8_block128 import BLOCK, FP8Tensor
from sshsdp_mxfp.gemm.choice import Backend, GemmProblem, choose_for
from sshsdp_mxfp.gemm.limits import ALIGNMENT
from sshsdp_mxfp.gemm.output import check_output, store
from sshsdp_mxfp.gemm.provider import FUNCTIONS, load
from sshsdp_mxfp.gemm.reference import full_precision
from sshsdp_mxfp.layouts import Float32Layout

_PROBLEM = GemmProblem(blocks="fp8_block128")


def fp8_matmul(
    a: FP8Tensor,
    b: FP8Tensor,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    accumulate: bool = False,
    backend: Backend | None = None,
) -> Tensor:
    """The product a @ b of matrices quantized as FP8Block128; no gradients.

    With a weight w [N, K] of 128x128, ``fp8_matmul(x, w.mT)`` is the forward pass,
    ``fp8_matmul(dy, w.mT.adjacent().mT)`` the gradient of x, and of grad and x quantized along
    tokens ``fp8_matmul(grad.mT, x)`` that of w.

    Args:
        a: [M, K], blocks of 1x128.
        b: [K, N], blocks of 128x128, or of 128x1.
        dtype: of a new result, float32 by default.
        out: where to write to, [M, N]; any strides.
        accumulate: add to what `out` holds, in float32.
        backend: "deep_gemm" (sm_90) or "reference"; None chooses by the device. The kernel rounds
            products with 128x128 blocks to bfloat16, and wants both with elements adjacent along K.

    Raises:
        ValueError: for operands that don't fit each other or the backend, before anything runs.
        BackendError: if a backend was named that can't do it on this device.
    """
    for name, operand, axis in (("a", a, 1), ("b", b, 0)):
        if not isinstance(operand, FP8Tensor):
            raise TypeError(f"expected {name} to be an FP8Tensor, got {type(operand).__name__}")
        if operand.format.block[axis] != BLOCK:
            raise ValueError(
                f"expected {name} with blocks of {BLOCK} along K, got {operand.format.block}"
            )
    if a.format.block[0] != 1:
        raise ValueError(f"expected a with blocks of 1x{BLOCK}, got {a.format.block}")
    if a.device != b.device or a.shape[1] != b.shape[0]:
        raise ValueError(
            f"expected b of {a.shape[1]} rows on {a.device}, got {b.shape[0]} on {b.device}"
        )
    shape = a.shape[0], b.shape[1]
    kind = check_output(out, shape, a.device, dtype, accumulate)
    chosen = choose_for(a.device, _PROBLEM, backend)
    if 0 in (*shape, a.shape[1]):
        product = torch.zeros(shape, dtype=kind, device=a.device)
    elif chosen == "deep_gemm":
        return _deep_gemm(a, b.mT, kind, out, accumulate)
    else:
        with full_precision(a.device):
            product = torch.mm(a.dequantize(), b.mT.dequantize().mT)
    return product.to(kind) if out is None else store(product, out, accumulate)


def _deep_gemm(
    a: FP8Tensor, b: FP8Tensor, dtype: torch.dtype, out: Tensor | None, accumulate: bool
) -> Tensor:
    """Multiply a [M, K] with b [N, K], by the kernel for blocks of 128x128 or the one that adds."""
    for name, operand in (("a", a), ("b.mT", b)):
        _check(name, operand)
    function = getattr(load(), FUNCTIONS["dense"].name)
    left = a.data, _mn_major(a.scale)
    if b.format.block[0] == BLOCK:
        product = torch.empty(len(a.data), len(b.data), dtype=torch.bfloat16, device=a.device)
        function(left, (b.data, b.scale.contiguous()), product, c=None, recipe=(1, BLOCK, BLOCK))
        return product.to(dtype) if out is None else store(product.to(dtype), out, accumulate)
    # It adds to float32 and nothing else.
    right = b.data, _mn_major(b.scale)
    direct = out is not None and out.dtype == torch.float32 and out.is_contiguous()
    if out is None or not direct:
        target = torch.zeros(len(a.data), len(b.data), dtype=torch.float32, device=a.device)
    else:
        target = out if accumulate else out.zero_()
    function(left, right, target, c=target, recipe=(1, 1, BLOCK))
    if out is None:
        return target.to(dtype)
    return target if direct else store(target, out, accumulate)


def _mn_major(scale: Tensor) -> Tensor:
    """Scales as the kernel reads them, so that it needn't lay them out itself."""
    operand = Float32Layout(*scale.shape).allocate(scale.device)
    return operand.copy_(scale)


def _check(name: str, operand: FP8Tensor) -> None:
    data = operand.data
    if data.stride(1) != 1 or data.stride(0) % ALIGNMENT or data.data_ptr() % ALIGNMENT:
        raise ValueError(
            f"expected {name} with elements adjacent along K, rows at multiples of {ALIGNMENT} "
            f"bytes, for deep_gemm on sm_90, got strides {data.stride()}; use .adjacent() of it"
        )
