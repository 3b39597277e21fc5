"""Orthogonalizes a batch of matrices by matrix products (Bernstein and Newhouse 2024)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sshsdp_updates.iteration import Triple

_ALIGN = 64  # bytes


def newton_schulz(
    matrices: Tensor,
    coefficients: Sequence[Triple],
    *,
    norm: float = 1.0,
    eps: float = 1e-7,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Return ``U p(S / (norm |G|)) V^T`` for every ``G = U S V^T``; p as in `Iteration`.

    The result for a matrix does not depend on the others of the batch, bit for bit. A zero matrix
    gives zeros.

    Args:
        matrices: (k, m, n), any floating dtype; stays as it is.
        coefficients: (a, b, c) of each step.
        norm: factor on the Frobenius norm.
        eps: smallest divisor, as in ``torch.optim.Muon``.
        dtype: of all products.

    Returns:
        (k, m, n) of `dtype`.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    wide = matrices.mT if tall else matrices
    x = _aligned(wide.shape, dtype, matrices.device).copy_(wide)
    length = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
    x.div_(length.mul_(norm).clamp_(min=eps))
    other = torch.empty_like(x)
    gram = x.new_empty(len(x), x.shape[1], x.shape[1])
    mixed = torch.empty_like(gram)
    for a, b, c in coefficients:
        torch.bmm(x, x.mT, out=gram)
        if c:
            torch.baddbmm(gram, gram, gram, beta=b, alpha=c, out=mixed)
        else:
            torch.mul(gram, b, out=mixed)
        torch.baddbmm(x, mixed, x, beta=a, out=other)
        x, other = other, x
    return x.mT if tall else x


def newton_schulz_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the bytes that `newton_schulz` allocates per matrix of `shape`."""
    short, long = min(shape), max(shape)
    matrix = -(-short * long * dtype.itemsize // _ALIGN) * _ALIGN
    return 2 * matrix + 2 * short * short * dtype.itemsize + _ALIGN  # the last is for the norm


def newton_schulz_cost(shape: tuple[int, ...], steps: int) -> int:
    """Return the floating-point operations of `newton_schulz` for a matrix of `shape`."""
    short, long = min(shape), max(shape)
    return 2 * steps * short * short * (2 * long + short)


def _aligned(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return (k, m, n) whose matrices all begin at a multiple of 64 bytes.

    Products of equal matrices at other alignments may differ in the last bit.
    """
    batch, rows, columns = shape
    step = -(-rows * columns * dtype.itemsize // _ALIGN) * _ALIGN // dtype.itemsize
    storage = torch.empty(batch * step, dtype=dtype, device=device)
    return storage.as_strided((batch, rows, columns), (step, columns, 1))
