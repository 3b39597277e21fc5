"""Every layout has an inverse: of operands, of grids, and of single cells."""

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
    scales_of_codes,
    tiles,
    unpack_grid,
    unpack_scales,
)

MATRICES = [PlainLayout, PackedLayout, Float32Layout, SwizzledLayout]
SIZES = st.integers(0, 40) | st.sampled_from([127, 128, 129, 260])


def assert_same(result, codes):
    if result.dtype == torch.float32:
        assert torch.equal(result, scales_of_codes(codes))
    else:
        assert result.dtype == torch.float8_e8m0fnu
        assert torch.equal(result.view(torch.uint8), codes)


@pytest.mark.parametrize("layout", MATRICES)
@given(rows=SIZES, blocks=st.integers(0, 10), chunk=st.integers(1, 300))
def test_matrices(layout, rows, blocks, chunk, make_codes):
    codes, plan = make_codes(rows, blocks), layout(rows, blocks)
    operand = pack_scales(codes, plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "CHUNK", chunk)
        assert_same(unpack_scales(operand, plan), codes)


@pytest.mark.parametrize(
    "plan",
    [
        StackedLayout(PackedLayout(70, 7), 3),
        StackedLayout(SwizzledLayout(70, 7), 3),
        StackedLayout(Float32Layout(5, 2), 2),
        StackedLayout(PackedLayout(70, 7), 0),
        KGroupedPackedLayout(72, (7, 0, 4)),
        KGroupedPackedLayout(72, ()),
        KGroupedSwizzledLayout(130, (7, 0, 4)),
    ],
)
def test_groups(plan, make_codes):
    codes = make_codes(*plan.logical_shape)
    assert_same(unpack_scales(pack_scales(codes, plan), plan), codes)


@pytest.mark.parametrize("layout", MATRICES)
@given(rows=SIZES, blocks=st.integers(0, 10), band=st.sampled_from([1, 2, 32]))
def test_grids(layout, rows, blocks, band, make_codes):
    grid, plan = make_codes(-(-rows // band), blocks), layout(rows, blocks)
    assert_same(unpack_grid(pack_scales(grid, plan, band=band), plan, band), grid)


def test_grids_of_groups(make_codes):
    for plan, shape in (
        (StackedLayout(PackedLayout(96, 5), 2), (2, 3, 5)),
        (KGroupedSwizzledLayout(96, (3, 2)), (3, 5)),
    ):
        grid = make_codes(*shape)
        assert_same(unpack_grid(pack_scales(grid, plan, band=32), plan), grid)


@pytest.mark.parametrize("plan", [PackedLayout(70, 5), StackedLayout(SwizzledLayout(35, 5), 2)])
def test_a_band_that_differs_is_no_grid(plan, make_codes):
    codes = torch.full(plan.logical_shape, 7, dtype=torch.uint8)
    codes[..., 34, 3] = 8
    operand = pack_scales(codes, plan)
    number = len(plan.parts) - 1
    with pytest.raises(ValueError, match=r"32 rows, got row 34, block 3 of matrix \d unlike"):
        unpack_grid(operand, plan)
    codes[..., 34, 3] = 7
    codes.view(-1, *plan.logical_shape[-2:])[-1, 1, 0] = 9
    with pytest.raises(ValueError, match=f"got row 1, block 0 of matrix {number} unlike"):
        unpack_grid(pack_scales(codes, plan), plan)


@pytest.mark.parametrize("layout", MATRICES)
@given(rows=SIZES, blocks=st.integers(0, 10))
def test_cells_and_positions_are_one_to_one(layout, rows, blocks):
    """All cells, padding included: an offset exists for every position that a cell claims."""
    plan = layout(rows, blocks)
    cells = torch.arange(plan.cells)
    row, block = plan.position(cells)
    assert torch.equal(plan.offset(row, block), cells)
    inside = (row < rows) & (block < blocks)
    assert int(inside.sum()) == rows * blocks
    assert len({*zip(row.tolist(), block.tolist(), strict=True)}) == plan.cells
    starts = cells // plan.run * plan.run
    assert torch.equal(plan.position(starts)[0], row)
    assert torch.equal(plan.position(starts)[1] + (cells - starts), block)


@pytest.mark.parametrize("layout", MATRICES)
@given(data=st.data(), rows=st.integers(1, 1 << 40), blocks=st.integers(1, 1 << 20))
def test_integers_of_any_size(layout, data, rows, blocks):
    """Plans of storage beyond 2^31 bytes need no tensors and don't overflow."""
    plan = layout(rows, blocks)
    row = data.draw(st.integers(0, rows - 1))
    block = data.draw(st.integers(0, blocks - 1))
    cell = plan.offset(row, block)
    assert 0 <= cell < plan.cells
    assert plan.position(cell) == (row, block)
    if plan.cells < 1 << 62:
        assert int(plan.offset(torch.tensor(row), torch.tensor(block))) == cell
