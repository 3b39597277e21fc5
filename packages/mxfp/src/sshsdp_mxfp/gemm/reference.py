"""The exact way: dequantized operands, multiplied by torch.

On CPUs operands are float32 (float64 for results of float64), on GPUs bfloat16. That holds every
E4M3 value with a scale code from 3 to 246 and every E5M2 value with one from 10 to 238, so that
products are the same as of a block-scaled multiplication; sums are of float32.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sshsdp_mxfp.gemm.limits import padded_sizes
from sshsdp_mxfp.gemm.operand import GemmOperand
from sshsdp_mxfp.gemm.output import store
from sshsdp_mxfp.layouts import RowGroups


def matmul(
    a: GemmOperand, b: GemmOperand, dtype: torch.dtype, out: Tensor | None, accumulate: bool
) -> Tensor:
    """The product [a.rows, b.rows]."""
    width = _width(a, dtype)
    return _multiply(a.values(width), b.values(width).mT, dtype, out, accumulate)


def grouped(a: GemmOperand, b: GemmOperand, groups: RowGroups, dtype: torch.dtype) -> Tensor:
    """Each group of rows with its own b, [a.rows, b.rows]; zeros in padding."""
    width = _width(a, dtype)
    left, right = a.values(width), b.values(width).mT
    result = torch.zeros(a.rows, b.rows, dtype=dtype, device=a.device)
    for group, (start, size) in enumerate(zip(groups.starts, groups.sizes, strict=True)):
        if size:
            rows = slice(start, start + size)
            _multiply(left[rows], right[group], dtype, result[rows], False)
    return result


def masked(a: GemmOperand, b: GemmOperand, counts: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The first rows of each group with its own b, [groups, a.rows, b.rows]; zeros beyond."""
    width = _width(a, dtype)
    left, right = a.values(width), b.values(width).mT
    result = torch.zeros(len(counts), a.rows, b.rows, dtype=dtype, device=a.device)
    for group, count in enumerate(counts):
        if count:
            _multiply(left[group, :count], right[group], dtype, result[group, :count], False)
    return result


def k_grouped(
    a: GemmOperand,
    b: GemmOperand,
    groups: RowGroups,
    dtype: torch.dtype,
    out: Tensor | None,
    accumulate: bool,
) -> Tensor:
    """Groups of the contracted dimension on their own, [groups, a.rows, b.rows]."""
    width = _width(a, dtype)
    left, right = a.values(width), b.values(width).mT
    shape = len(groups.sizes), a.rows, b.rows
    result = torch.empty(shape, dtype=dtype, device=a.device) if out is None else out
    for start, length, target in zip(groups.starts, padded_sizes(groups), result, strict=True):
        part = slice(start, start + length)
        if length:
            _multiply(left[:, part], right[part], dtype, target, accumulate)
        elif not accumulate:
            target.zero_()
    return result


def _width(a: GemmOperand, dtype: torch.dtype) -> torch.dtype:
    if a.device.type == "cuda":
        return torch.bfloat16
    return torch.float64 if dtype == torch.float64 else torch.float32


def _multiply(
    left: Tensor, right: Tensor, dtype: torch.dtype, out: Tensor | None, accumulate: bool
) -> Tensor:
    with full_precision(left.device):
        if left.dtype == torch.bfloat16 and (accumulate or dtype != torch.bfloat16):
            product = torch.mm(left, right, out_dtype=torch.float32)
        elif out is not None and accumulate and out.dtype == left.dtype:
            return out.addmm_(left, right)
        else:
            product = torch.mm(left, right)
    return product.to(dtype) if out is None else store(product, out, accumulate)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Let torch's products be of the operands as they are, and sums of float32.

    Autocast would round float32 operands to bfloat16, as would a lower precision for products of
    float32; on GPUs sums may be of bfloat16 where they are split.
    """
    cublas = torch.backends.cuda.matmul
    # Not allow_tf32: torch refuses to read that once a program has set the newer fp32_precision.
    backend: Any = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    products = backend.matmul
    precision = products.fp32_precision
    reduced = cublas.allow_bf16_reduced_precision_reduction
    split = getattr(cublas, "allow_bf16_reduced_precision_reduction_split_k", True)
    with torch.autocast(device.type, enabled=False):
        try:
            products.fp32_precision = "ieee"
            cublas.allow_bf16_reduced_precision_reduction = False, split
            yield
        finally:
            products.fp32_precision = precision
            cublas.allow_bf16_reduced_precision_reduction = reduced, split
