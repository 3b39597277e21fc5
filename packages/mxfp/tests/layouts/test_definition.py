"""Storage of every layout, padding included, equals its definition walked by loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_mxfp.layouts import (
    Float32Layout,
    KGroupedPackedLayout,
    KGroupedSwizzledLayout,
    PackedLayout,
    PlainLayout,
    StackedLayout,
    SwizzledLayout,
    pack_scales,
    tiles,
)

MATRICES = [PlainLayout, PackedLayout, Float32Layout, SwizzledLayout]
SIZES = st.integers(0, 40) | st.sampled_from([127, 128, 129, 260])


@pytest.mark.parametrize("layout", MATRICES)
@given(rows=SIZES, blocks=st.integers(0, 10), chunk=st.integers(1, 300))
def test_matrix(layout, rows, blocks, chunk, by_hand, make_codes):
    codes, plan = make_codes(rows, blocks), layout(rows, blocks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "CHUNK", chunk)
        operand = pack_scales(codes, plan)
    storage = plan.storage(operand)
    assert storage.tolist() == by_hand(layout, codes)
    assert (plan.cells, plan.nbytes) == (storage.numel(), storage.nbytes)
    assert plan.padding == plan.cells - codes.numel()


@pytest.mark.parametrize("layout", MATRICES)
@given(rows=SIZES, columns=st.integers(0, 10), band=st.sampled_from([1, 2, 32]))
def test_bands_share_a_row_of_the_grid(layout, rows, columns, band, by_hand, make_codes):
    grid, plan = make_codes(-(-rows // band), columns), layout(rows, columns)
    expanded = grid.repeat_interleave(band, dim=0)[:rows]
    assert plan.storage(pack_scales(grid, plan, band=band)).tolist() == by_hand(layout, expanded)


@pytest.mark.parametrize("layout", [PackedLayout, SwizzledLayout])
def test_one_grid_serves_forward_and_dgrad(layout, by_hand, make_codes):
    """Of a weight [N, K]: blocks along K for all n, and along N for all k."""
    n, k = 96, 224
    grid = make_codes(n // 32, k // 32)
    forward, dgrad = layout(n, k // 32), layout(k, n // 32)
    by_n = torch.tensor([[grid[i // 32, j] for j in range(k // 32)] for i in range(n)])
    by_k = torch.tensor([[grid[j, i // 32] for j in range(n // 32)] for i in range(k)])
    assert forward.storage(pack_scales(grid, forward, band=32)).tolist() == by_hand(layout, by_n)
    assert dgrad.storage(pack_scales(grid.t(), dgrad, band=32)).tolist() == by_hand(layout, by_k)


@pytest.mark.parametrize("layout", MATRICES)
@given(groups=st.integers(0, 3), rows=st.integers(0, 9), blocks=st.integers(0, 9))
def test_stack(layout, groups, rows, blocks, by_hand, make_codes):
    codes, plan = make_codes(groups, rows, blocks), StackedLayout(layout(rows, blocks), groups)
    wanted = [cell for each in codes for cell in by_hand(layout, each)]
    for scales in (codes, list(codes)) if groups else (codes,):
        assert plan.storage(pack_scales(scales, plan)).tolist() == wanted


@pytest.mark.parametrize(
    ("grouped", "layout"),
    [(KGroupedPackedLayout, PackedLayout), (KGroupedSwizzledLayout, SwizzledLayout)],
)
@given(
    rows=st.integers(0, 40).map(lambda quarter: 4 * quarter),
    blocks=st.lists(st.integers(0, 9), max_size=5).map(tuple),
)
def test_groups_along_k(grouped, layout, rows, blocks, by_hand, make_codes):
    plan = grouped(rows, blocks)
    codes = make_codes(rows, sum(blocks))
    matrices = codes.split(blocks, dim=1) if blocks else ()
    wanted = [cell for each in matrices for cell in by_hand(layout, each)]
    assert plan.storage(pack_scales(codes, plan)).tolist() == wanted


def test_codes_of_e8m0_and_any_strides_are_the_same(make_codes):
    codes = make_codes(70, 9)
    plan = PackedLayout(70, 9)
    wanted = plan.storage(pack_scales(codes, plan))
    wide = torch.zeros(70, 18, dtype=torch.uint8)
    wide[:, ::2] = codes
    for same in (codes.view(torch.float8_e8m0fnu), codes.t().contiguous().t(), wide[:, ::2]):
        assert torch.equal(plan.storage(pack_scales(same, plan)), wanted)


def test_floats_are_laid_out_as_they_are():
    """Hopper's recipes have scales that are no powers of two."""
    scales = torch.rand(70, 3) + 0.1
    operand = pack_scales(scales, Float32Layout(70, 3))
    assert torch.equal(operand, scales)
    assert operand.stride() == (1, 72)
    grid = torch.rand(2, 3)
    assert torch.equal(pack_scales(grid, PlainLayout(2, 3, torch.float32)), grid)
