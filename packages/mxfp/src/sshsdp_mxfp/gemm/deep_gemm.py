"""DeepGEMM on sm_100: packed scales, a granularity of 32 on both sides.

Its default is a granularity of 128, at which it would misread these scales: every call says 32.
"""

from typing import Any

import torch
from torch import Tensor

from sshsdp_mxfp.gemm.limits import (
    ALIGNMENT,
    GemmSizes,
    check_adjacent,
    check_groups,
    check_memory,
    padded_sizes,
)
from sshsdp_mxfp.gemm.operand import K_BLOCK, GemmOperand
from sshsdp_mxfp.gemm.output import store
from sshsdp_mxfp.gemm.provider import FUNCTIONS, Kind, load
from sshsdp_mxfp.layouts import KGroupedPackedLayout, PackedLayout, RowGroups

_RECIPE = {"recipe_a": (1, K_BLOCK), "recipe_b": (1, K_BLOCK)}
_OUTPUTS = (torch.float32, torch.bfloat16)


def matmul(
    a: GemmOperand, b: GemmOperand, dtype: torch.dtype, out: Tensor | None, accumulate: bool
) -> Tensor:
    """The product [a.rows, b.rows].

    Into float32 with adjacent rows it is written, or added, by the kernel; else it goes through a
    temporary.
    """
    _check(a, b, GemmSizes(a.rows, b.rows, a.k))
    _check_dtype(dtype)
    if out is not None and _writable(out) and (not accumulate or dtype == torch.float32):
        added = out if accumulate else None
        _function("dense")(_pair(a), _pair(b), out, c=added, **_RECIPE)
        return out
    kind = torch.float32 if accumulate else dtype
    product = torch.empty(a.rows, b.rows, dtype=kind, device=a.device)
    _function("dense")(_pair(a), _pair(b), product, c=None, **_RECIPE)
    return store(product, out, accumulate)


def grouped(a: GemmOperand, b: GemmOperand, groups: RowGroups, dtype: torch.dtype) -> Tensor:
    """Each group of rows with its own b, [a.rows, b.rows]; zeros in padding."""
    _check(a, b, GemmSizes(a.rows, b.rows, a.k))
    check_adjacent("a", a, "deep_gemm")
    check_groups(groups, _alignment(), "deep_gemm", exactly=True)
    result = torch.empty(a.rows, b.rows, dtype=torch.bfloat16, device=a.device)
    ends = groups.ends().to(a.device, non_blocking=True)
    options = {"use_psum_layout": True, "ensure_zero_padding": True, **_RECIPE}
    _function("grouped")(_pair(a), _pair(b), result, ends, **options)
    return result.to(dtype)


def masked(
    a: GemmOperand, b: GemmOperand, counts: Tensor, expected: int, dtype: torch.dtype
) -> Tensor:
    """The first rows of each group with its own b, [groups, a.rows, b.rows]."""
    _check(a, b, GemmSizes(a.rows, b.rows, a.k))
    for name, operand in (("a", a), ("b", b)):
        check_adjacent(name, operand, "deep_gemm")
    result = torch.empty(*a.shape[:-1], b.rows, dtype=torch.bfloat16, device=a.device)
    _function("masked")(_pair(a), _pair(b), result, counts, expected, **_RECIPE)
    return result.to(dtype)


def k_grouped(
    a: GemmOperand,
    b: GemmOperand,
    groups: RowGroups,
    dtype: torch.dtype,
    out: Tensor | None,
    accumulate: bool,
) -> Tensor:
    """Groups of the contracted dimension on their own, [groups, a.rows, b.rows].

    The kernel only adds, and only to float32.
    """
    _check(a, b, GemmSizes(a.rows, b.rows, a.k))
    check_groups(groups, _alignment(), "deep_gemm", exactly=False)
    for name, operand in (("a", a), ("b", b)):
        if not operand.data.mT.is_contiguous():
            raise ValueError(
                f"expected {name} with elements adjacent along its rows for deep_gemm, got "
                f"strides {operand.data.stride()}; quantize it without transposed=True"
            )
    lengths = padded_sizes(groups)
    blocks = tuple(length // K_BLOCK for length in lengths)
    sides = [
        (each.data.mT, each.scales_as(KGroupedPackedLayout(each.rows, blocks))) for each in (a, b)
    ]
    direct = out is not None and out.dtype == torch.float32 and out.is_contiguous()
    if out is None or not direct:
        shape = len(lengths), a.rows, b.rows
        target = torch.zeros(shape, dtype=torch.float32, device=a.device)
    else:
        target = out if accumulate else out.zero_()
    sizes = torch.tensor(lengths, dtype=torch.int32).to(a.device, non_blocking=True)
    # By position: versions differ in the names.
    _function("k_grouped")(*sides, target, lengths, sizes, target, recipe=(1, 1, K_BLOCK))
    if out is None:
        return target.to(dtype)
    return target if direct else store(target, out, accumulate)


def _function(kind: Kind) -> Any:
    return getattr(load(), FUNCTIONS[kind].name)


def _alignment() -> int:
    """Where DeepGEMM lets groups begin, a setting of the process."""
    return int(load().get_mk_alignment_for_contiguous_layout())


def _pair(operand: GemmOperand) -> tuple[Tensor, Tensor]:
    return operand.data, operand.scales(PackedLayout)


def _check(a: GemmOperand, b: GemmOperand, sizes: GemmSizes) -> None:
    sizes.check("deep_gemm")
    for name, operand in (("a", a), ("b", b)):
        check_memory(name, operand.data, "deep_gemm")


def _writable(out: Tensor) -> bool:
    """Whether the kernel can write there: adjacent rows at multiples of 16 bytes."""
    size = out.element_size()
    places = out.data_ptr(), out.stride(0) * size
    return out.stride(-1) == 1 and not any(place % ALIGNMENT for place in places)


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in _OUTPUTS:
        names = " or ".join(map(str, _OUTPUTS))
        raise ValueError(f"expected a result of {names} for deep_gemm, got {dtype}")
