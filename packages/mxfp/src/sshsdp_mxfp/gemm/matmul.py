"""Products of quantized matrices, and of weights with what they are multiplied by."""

import torch
from torch import Tensor

from sshsdp_mxfp.gemm import deep_gemm, reference, scaled_mm
from sshsdp_mxfp.gemm.choice import Backend, GemmProblem, choose_for
from sshsdp_mxfp.gemm.operand import GemmOperand, as_operand
from sshsdp_mxfp.gemm.output import check_output
from sshsdp_mxfp.tensor import MXTensor

_MATMULS = {
    "deep_gemm": deep_gemm.matmul,
    "torch": scaled_mm.matmul,
    "reference": reference.matmul,
}


def mx_matmul(
    a: MXTensor | GemmOperand,
    b: MXTensor | GemmOperand,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    accumulate: bool = False,
    backend: Backend | None = None,
) -> Tensor:
    """The product a @ b of quantized matrices; no gradients.

    Both have blocks of 32 along the contracted dimension: 1x32 or 32x32 in a, 32x1 or 32x32 in b.
    With a weight w [N, K] of 32x32, ``mx_matmul(x, w.mT)`` is the forward pass and
    ``mx_matmul(dy, w)`` the gradient of x.

    Args:
        a: [M, K], or an operand of it (contracting its columns).
        b: [K, N], or an operand of ``b.mT``.
        dtype: of a new result, float32 by default; the kernel's sums are float32 and rounded once.
        out: where to write to, [M, N]; any strides.
        accumulate: add to what `out` holds, in float32.
        backend: "deep_gemm", "torch" or "reference"; None chooses by the device, see
            `choose_gemm`.

    Returns:
        `out`, or a new tensor.

    Raises:
        ValueError: for operands that don't fit each other or the backend, before anything runs.
        BackendError: if a backend was named that can't do it on this device.
    """
    left, right = as_operand(a, -1, "a"), as_operand(b, -2, "b")
    for name, operand in (("a", left), ("b", right)):
        if len(operand.shape) != 2:
            raise ValueError(
                f"expected {name} to be a matrix, got shape {list(operand.shape)}; use "
                f"mx_grouped_matmul or mx_masked_matmul for stacks"
            )
    check_pair(left, right)
    shape = left.rows, right.rows
    kind = check_output(out, shape, left.device, dtype, accumulate)
    problem = GemmProblem("dense", (left.element, right.element))
    chosen = choose_for(left.device, problem, backend)
    if not left.k or 0 in shape:
        return _empty(shape, left.device, kind, out, accumulate)
    return _MATMULS[chosen](left, right, kind, out, accumulate)


def mx_weight_grad(
    grad: MXTensor,
    x: MXTensor,
    *,
    rows: slice = slice(None),
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    accumulate: bool = False,
    backend: Backend | None = None,
) -> Tensor:
    """The gradient of a weight, or of a range of its rows: ``grad[:, rows].mT @ x``.

    A weight that is packed of several (Q, K and V) has its rows in ranges; each one's gradient can
    go to a place of its own.

    Args:
        grad: of the output, [tokens, N], quantized along tokens: blocks of 32x1.
        x: the input, [tokens, K], likewise.
        rows: of the weight, which are columns of `grad`.
        dtype: as of `mx_matmul`; likewise `out`, `accumulate` and `backend`.
        out: [rows, K], float32 or bfloat16.
        accumulate: add to what `out` holds.
        backend: "torch" wants both quantized by ``quantize_both(..., transposed=True)``.

    Raises:
        ValueError: see `mx_matmul`.
    """
    if len(grad.shape) != 2:
        raise ValueError(f"expected grad to be a matrix, got shape {list(grad.shape)}")
    left = as_operand(grad[:, rows], -2, "grad")
    return mx_matmul(left, x, dtype=dtype, out=out, accumulate=accumulate, backend=backend)


def check_pair(a: GemmOperand, b: GemmOperand) -> None:
    """Refuse operands on two devices or of two lengths along the contracted dimension."""
    if a.device != b.device:
        raise ValueError(f"expected both operands on {a.device} where a is, got b on {b.device}")
    if a.k != b.k:
        raise ValueError(
            f"expected b with K = {a.k} as a has it, got {b.k}; shapes along [rows, K] are "
            f"{list(a.shape)} and {list(b.shape)}"
        )


def _empty(
    shape: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype,
    out: Tensor | None,
    accumulate: bool,
) -> Tensor:
    """A sum of nothing."""
    if out is None:
        return torch.zeros(shape, dtype=dtype, device=device)
    return out if accumulate else out.zero_()
