"""Products of groups: the experts of a mixture."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sshsdp_mxfp.gemm import deep_gemm, reference, scaled_mm
from sshsdp_mxfp.gemm.choice import Backend, GemmProblem, choose_for
from sshsdp_mxfp.gemm.limits import check_groups
from sshsdp_mxfp.gemm.matmul import check_pair
from sshsdp_mxfp.gemm.operand import K_BLOCK, GemmOperand, as_operand
from sshsdp_mxfp.gemm.output import check_output
from sshsdp_mxfp.gemm.provider import Kind
from sshsdp_mxfp.layouts import RowGroups
from sshsdp_mxfp.tensor import MXTensor

_GROUPED = {
    "deep_gemm": deep_gemm.grouped,
    "torch": scaled_mm.grouped,
    "reference": reference.grouped,
}
_K_GROUPED = {
    "deep_gemm": deep_gemm.k_grouped,
    "torch": scaled_mm.k_grouped,
    "reference": reference.k_grouped,
}


def mx_grouped_matmul(
    a: MXTensor | GemmOperand,
    b: MXTensor | GemmOperand,
    groups: RowGroups,
    *,
    dtype: torch.dtype = torch.bfloat16,
    backend: Backend | None = None,
) -> Tensor:
    """Multiply each group of rows by a matrix of its own.

    With weights w [groups, N, K] of 32x32, ``mx_grouped_matmul(x, w.mT, groups)`` is the forward
    pass of experts, and ``mx_grouped_matmul(dy, w, groups)`` the gradient of x. Groups may be
    empty.

    Args:
        a: [groups.rows, K], blocks of 32 along K. Padding between groups holds zeros.
        b: [groups, K, N], or an operand of ``b.mT``.
        groups: where rows of which group are; kernels want an alignment of 128.
        dtype: of the result. Kernels round to bfloat16 first.
        backend: as of `mx_matmul`.

    Returns:
        [groups.rows, N], zeros in padding.

    Raises:
        ValueError: for operands that don't fit each other, the groups or the backend.
        BackendError: if a backend was named that can't do it on this device.
    """
    left, right = as_operand(a, -1, "a"), as_operand(b, -2, "b")
    check_dims(left, 2, "a", "[rows, K]")
    check_dims(right, 3, "b", "[groups, K, N]")
    check_pair(left, right)
    if left.rows != groups.rows or right.shape[0] != len(groups.sizes):
        raise ValueError(
            f"expected a of {groups.rows} rows and b of {len(groups.sizes)} matrices for these "
            f"groups, got {left.rows} and {right.shape[0]}"
        )
    dtype = check_output(None, (left.rows, right.rows), left.device, dtype, False)
    chosen = _choose("grouped", left, right, backend)
    if not left.k or not left.rows or not right.rows:
        return torch.zeros(left.rows, right.rows, dtype=dtype, device=left.device)
    return _GROUPED[chosen](left, right, groups, dtype)


def mx_masked_matmul(
    a: MXTensor | GemmOperand,
    b: MXTensor | GemmOperand,
    counts: Sequence[int] | Tensor,
    *,
    expected: int,
    dtype: torch.dtype = torch.bfloat16,
    backend: Backend | None = None,
) -> Tensor:
    """Multiply the first rows of each group by a matrix of its own; groups have equal room.

    Args:
        a: [groups, room, K], blocks of 32 along K; all of it has legal scales.
        b: [groups, K, N], or an operand of ``b.mT``.
        counts: rows of each group, 0 to room; a tensor stays on its device for deep_gemm, and is
            waited for by the reference.
        expected: how many rows a group is likely to have, at least 1; deep_gemm chooses its tiles
            by it.
        dtype: of the result. Kernels round to bfloat16 first.
        backend: as of `mx_matmul`; torch has no such form.

    Returns:
        [groups, room, N]. Rows beyond the counts are undefined.

    Raises:
        ValueError: for operands that don't fit each other, the counts or the backend.
        BackendError: if a backend was named that can't do it on this device.
    """
    left, right = as_operand(a, -1, "a"), as_operand(b, -2, "b")
    check_dims(left, 3, "a", "[groups, room, K]")
    check_dims(right, 3, "b", "[groups, K, N]")
    check_pair(left, right)
    if not len(counts) == left.shape[0] == right.shape[0]:
        raise ValueError(
            f"expected counts, a and b of as many groups, got {len(counts)}, {left.shape[0]} and "
            f"{right.shape[0]}"
        )
    if expected < 1:
        raise ValueError(f"expected at least 1 row as expected, got {expected}")
    shape = *left.shape[:2], right.rows
    dtype = check_output(None, shape, left.device, dtype, False)
    chosen = _choose("masked", left, right, backend)
    if not left.k or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=left.device)
    if chosen == "deep_gemm":
        device = _counts(counts, left.rows).to(left.device, torch.int32, non_blocking=True)
        return deep_gemm.masked(left, right, device, expected, dtype)
    host = _counts(counts, left.rows).tolist()
    return reference.masked(left, right, host, dtype)


def mx_grouped_weight_grad(
    grad: MXTensor,
    x: MXTensor,
    groups: RowGroups,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    accumulate: bool = False,
    backend: Backend | None = None,
) -> Tensor:
    """Gradients of the weights of all groups: ``grad[rows of the group].mT @ x[same]``.

    Args:
        grad: of the output, [groups.rows, N], quantized along rows: blocks of 32x1.
        x: the input, [groups.rows, K], likewise; padding between groups holds zeros.
        groups: where rows of which group are, at an alignment that is a multiple of 32, so that no
            block has rows of two groups; 128 for deep_gemm.
        dtype: of a new result, float32 by default; with torch, products are rounded to bfloat16.
        out: [groups, N, K] to write to.
        accumulate: add to what `out` holds; empty groups add nothing.
        backend: as of `mx_matmul`. "torch" wants both quantized by
            ``quantize_both(..., transposed=True)``, deep_gemm without.

    Returns:
        `out`, or a new tensor [groups, N, K]; zeros for empty groups.

    Raises:
        ValueError: for operands that don't fit each other, the groups or the backend.
        BackendError: if a backend was named that can't do it on this device.
    """
    check_groups(groups, K_BLOCK, "weight gradients", exactly=False)
    if len(grad.shape) != 2 or len(x.shape) != 2:
        raise ValueError(
            f"expected grad and x to be matrices, got shapes {list(grad.shape)} and {list(x.shape)}"
        )
    left, right = as_operand(grad, -2, "grad"), as_operand(x, -2, "x")
    check_pair(left, right)
    if left.k != groups.rows:
        raise ValueError(
            f"expected grad and x of {groups.rows} rows for these groups, got {left.k}"
        )
    shape = len(groups.sizes), left.rows, right.rows
    kind = check_output(out, shape, left.device, dtype, accumulate)
    chosen = _choose("k_grouped", left, right, backend)
    if not left.k or 0 in shape:
        if out is None:
            return torch.zeros(shape, dtype=kind, device=left.device)
        return out if accumulate else out.zero_()
    return _K_GROUPED[chosen](left, right, groups, kind, out, accumulate)


def check_dims(operand: GemmOperand, dims: int, name: str, wanted: str) -> None:
    """Refuse another number of dimensions."""
    if len(operand.shape) != dims:
        raise ValueError(f"expected {name} of {wanted}, got {len(operand.shape)} dimensions")


def _choose(kind: Kind, a: GemmOperand, b: GemmOperand, backend: Backend | None) -> Backend:
    return choose_for(a.device, GemmProblem(kind, (a.element, b.element)), backend)


def _counts(counts: Sequence[int] | Tensor, room: int) -> Tensor:
    """As a tensor; host numbers are checked, those of a device would have to be waited for."""
    if isinstance(counts, Tensor) and counts.device.type != "cpu":
        return counts
    host = torch.as_tensor(counts)
    if host.dim() != 1 or (host.numel() and not 0 <= int(host.min()) <= int(host.max()) <= room):
        raise ValueError(f"expected counts from 0 to {room}, got {host.tolist()}")
    return host
