"""Layouts of others: the torch fallbacks of a DeepGEMM provider, torchao's swizzles."""

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_mxfp.layouts import (
    KGroupedPackedLayout,
    KGroupedSwizzledLayout,
    PackedLayout,
    RowGroups,
    StackedLayout,
    SwizzledLayout,
    codes_of_scales,
    pack_scales,
    scales_of_codes,
    unpack_scales,
    write_scales,
)

ODD = [(1, 1), (4, 4), (70, 7), (128, 4), (129, 5), (256, 90), (3, 13), (131, 1)]


def normal(codes):
    """DeepGEMM packs the exponents of floats: code 0 is no normal float."""
    return codes.clamp(min=1)


def same_memory(one, two):
    assert (one.dtype, one.shape, one.stride()) == (two.dtype, two.shape, two.stride())
    assert torch.equal(one, two)


@pytest.mark.parametrize(("rows", "blocks"), ODD)
def test_packed(deep_gemm, make_codes, rows, blocks):
    codes = normal(make_codes(rows, blocks))
    theirs = deep_gemm._pack_fp32_into_ue8m0_fallback(scales_of_codes(codes))
    plan = PackedLayout(rows, blocks)
    same_memory(pack_scales(codes, plan), theirs)
    assert torch.equal(plan.storage(pack_scales(codes, plan)), plan.storage(theirs))
    assert torch.equal(unpack_scales(theirs, plan).view(torch.uint8), codes)


@given(rows=st.integers(1, 150), blocks=st.integers(1, 20), groups=st.integers(1, 3))
def test_packed_stacks(deep_gemm, make_codes, rows, blocks, groups):
    codes = normal(make_codes(groups, rows, blocks))
    theirs = deep_gemm._pack_fp32_into_ue8m0_fallback(scales_of_codes(codes))
    same_memory(pack_scales(codes, StackedLayout(PackedLayout(rows, blocks), groups)), theirs)


@given(
    rows=st.integers(1, 40).map(lambda quarter: 4 * quarter),
    blocks=st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple),
)
def test_packed_with_groups_along_k(deep_gemm, make_codes, rows, blocks):
    """Each group is packed by itself; the operand shows blocks as rows."""
    codes = normal(make_codes(rows, sum(blocks)))
    pack = deep_gemm._pack_fp32_into_ue8m0_fallback
    theirs = torch.cat([pack(scales_of_codes(part)).t() for part in codes.split(blocks, dim=1)])
    ours = pack_scales(codes, KGroupedPackedLayout(rows, blocks))
    assert torch.equal(ours, theirs)
    assert ours.is_contiguous()


@pytest.mark.parametrize(("rows", "blocks"), ODD)
def test_swizzled(torchao, make_codes, rows, blocks):
    codes, plan = make_codes(rows, blocks), SwizzledLayout(rows, blocks)
    theirs = torchao.to_blocked(codes)
    assert torch.equal(plan.storage(pack_scales(codes, plan)), theirs)
    operand = plan.operand(theirs)
    assert torch.equal(unpack_scales(operand, plan).view(torch.uint8), codes)
    ours = pack_scales(codes, plan).view(torch.uint8)
    assert torch.equal(torchao.from_blocked(ours.flatten(), rows, blocks), codes)


@given(rows=st.integers(1, 300), blocks=st.integers(1, 20), groups=st.integers(1, 3))
def test_swizzled_stacks(torchao, make_codes, rows, blocks, groups):
    codes = make_codes(groups, rows, blocks)
    ours = pack_scales(codes, StackedLayout(SwizzledLayout(rows, blocks), groups))
    assert torch.equal(ours.view(torch.uint8), torchao.experts(codes))


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=5).map(tuple),
    blocks=st.integers(1, 5).map(lambda words: 4 * words),
)
def test_swizzled_with_groups_along_m(torchao, make_codes, sizes, blocks):
    """The buffer of torchao has an upper bound of rows, unused ones last."""
    codes = make_codes(sum(sizes), blocks)
    ends = torch.tensor(sizes).cumsum(0)
    theirs, starts = torchao.m_groups(codes, ends)
    groups = RowGroups(sizes, alignment=128)
    plan = SwizzledLayout(groups.rows, blocks)
    operand = plan.allocate()
    write_scales(groups.writes(codes, plan, operand))
    ours = plan.storage(operand)
    assert torch.equal(ours, theirs.flatten()[: ours.numel()])
    assert not theirs.flatten()[ours.numel() :].any()
    assert list(groups.starts) == starts[:-1].tolist()
    assert groups.rows == int(starts[-1])


@given(
    rows=st.integers(1, 300),
    blocks=st.lists(st.integers(0, 9), min_size=1, max_size=5).map(tuple),
)
def test_swizzled_with_groups_along_k(torchao, make_codes, rows, blocks):
    codes = make_codes(rows, sum(blocks))
    theirs, starts = torchao.k_groups(codes, torch.tensor(blocks).cumsum(0))
    plan = KGroupedSwizzledLayout(rows, blocks)
    ours = plan.storage(pack_scales(codes, plan))
    assert torch.equal(ours, theirs.flatten()[: ours.numel()])
    assert plan.words * 4 == int(starts[-1])


def test_scales_of_their_cast_are_codes(deep_gemm):
    """DeepGEMM's own rounded floats are powers of two, and pack to the same words."""
    cast = sys.modules["fallbacks.utils.math"]
    elements = torch.randn(70, 7 * 32) * torch.exp2(torch.arange(224) % 40 - 20.0)
    _, scales = cast.per_token_cast_to_fp8(elements, use_ue8m0=True, gran_k=32)
    ours = pack_scales(codes_of_scales(scales), PackedLayout(70, 7))
    same_memory(ours, deep_gemm._pack_fp32_into_ue8m0_fallback(scales))
