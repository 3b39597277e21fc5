"""torch's block-scaled products: scaled_mm and scaled_grouped_mm, with swizzled scales."""

import torch
from torch import Tensor
from torch.nn import functional

from sshsdp_mxfp.gemm.limits import (
    GemmSizes,
    check_adjacent,
    check_groups,
    check_memory,
    padded_sizes,
)
from sshsdp_mxfp.gemm.operand import K_BLOCK, GemmOperand
from sshsdp_mxfp.gemm.output import store
from sshsdp_mxfp.layouts import KGroupedSwizzledLayout, RowGroups, SwizzledLayout

_ROWS = 128  # of a tile of scales: groups that begin elsewhere would share one
_OUTPUTS = (torch.float32, torch.bfloat16, torch.float16)


def matmul(
    a: GemmOperand, b: GemmOperand, dtype: torch.dtype, out: Tensor | None, accumulate: bool
) -> Tensor:
    """The product [a.rows, b.rows]."""
    _check(a, b, GemmSizes(a.rows, b.rows, a.k))
    if dtype not in _OUTPUTS:
        names = ", ".join(map(str, _OUTPUTS))
        raise ValueError(f"expected a result of {names} for torch, got {dtype}")
    product = functional.scaled_mm(
        a.data,
        b.data.mT,
        a.scales(SwizzledLayout),
        functional.ScalingType.BlockWise1x32,
        b.scales(SwizzledLayout),
        functional.ScalingType.BlockWise1x32,
        swizzle_a=functional.SwizzleType.SWIZZLE_32_4_4,
        swizzle_b=functional.SwizzleType.SWIZZLE_32_4_4,
        output_dtype=torch.float32 if accumulate else dtype,
    )
    return store(product, out, accumulate)


def grouped(a: GemmOperand, b: GemmOperand, groups: RowGroups, dtype: torch.dtype) -> Tensor:
    """Each group of rows with its own b, [a.rows, b.rows]; padding is part of its group."""
    _check(a, b, GemmSizes(a.rows, b.rows, a.k))
    check_groups(groups, _ROWS, "torch", exactly=False)
    product = _grouped(a, b, a.scales(SwizzledLayout), b.scales(SwizzledLayout), groups)
    return product.to(dtype)


def k_grouped(
    a: GemmOperand,
    b: GemmOperand,
    groups: RowGroups,
    dtype: torch.dtype,
    out: Tensor | None,
    accumulate: bool,
) -> Tensor:
    """Groups of the contracted dimension on their own, [groups, a.rows, b.rows].

    Products are rounded to bfloat16 before they are stored or added: the kernel has no other
    results.
    """
    _check(a, b, GemmSizes(a.rows, b.rows, a.k))
    check_groups(groups, K_BLOCK, "torch", exactly=False)
    blocks = tuple(length // K_BLOCK for length in padded_sizes(groups))
    left, right = (each.scales_as(KGroupedSwizzledLayout(each.rows, blocks)) for each in (a, b))
    product = _grouped(a, b, left, right, groups)
    for group, size in enumerate(groups.sizes):
        if not size:
            product[group].zero_()  # nothing was computed there
    return store(product.to(dtype), out, accumulate)


def _grouped(
    a: GemmOperand, b: GemmOperand, scales_a: Tensor, scales_b: Tensor, groups: RowGroups
) -> Tensor:
    ends = torch.tensor(padded_sizes(groups), dtype=torch.int32).cumsum(0, dtype=torch.int32)
    product: Tensor = functional.scaled_grouped_mm(  # type: ignore[attr-defined]
        a.data,
        b.data.mT,
        scales_a,
        functional.ScalingType.BlockWise1x32,
        scales_b,
        functional.ScalingType.BlockWise1x32,
        swizzle_a=functional.SwizzleType.SWIZZLE_32_4_4,
        swizzle_b=functional.SwizzleType.SWIZZLE_32_4_4,
        offs=ends.to(a.device, non_blocking=True),
        output_dtype=torch.bfloat16,
    )
    return product


def _check(a: GemmOperand, b: GemmOperand, sizes: GemmSizes) -> None:
    sizes.check("torch")
    for name, operand in (("a", a), ("b", b)):
        check_adjacent(name, operand, "torch")
        check_memory(name, operand.data, "torch")
