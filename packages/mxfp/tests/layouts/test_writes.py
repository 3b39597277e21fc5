"""Several parameters share one operand: each writes its rectangle and nothing else."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_mxfp.layouts import (
    Float32Layout,
    KGroupedPackedLayout,
    PackedLayout,
    PlainLayout,
    RowGroups,
    ScaleWrite,
    StackedLayout,
    SwizzledLayout,
    pack_scales,
    scales_of_codes,
    unpack_scales,
    write_scales,
)

MATRICES = [PlainLayout, PackedLayout, Float32Layout, SwizzledLayout]


def poisoned(plan):
    """An operand of NaN."""
    nan = 255 if plan.cell == torch.uint8 else torch.nan
    return plan.operand(torch.full((plan.cells,), nan, dtype=plan.cell))


def codes_in(operand, plan):
    scales = unpack_scales(operand, plan)
    return scales.view(torch.uint8) if plan.cell == torch.uint8 else scales


@pytest.mark.parametrize("layout", MATRICES)
@given(
    heads=st.lists(st.integers(0, 3).map(lambda bands: 32 * bands), max_size=4),
    tail=st.integers(0, 31),
    blocks=st.integers(0, 6),
)
def test_heads_along_rows(layout, heads, tail, blocks, make_codes):
    """The grid of a whole equals those of its heads; only the last may be ragged."""
    heads = [*heads, tail]
    plan = layout(sum(heads), blocks)
    grids = [make_codes(-(-rows // 32), blocks, seed=head) for head, rows in enumerate(heads)]
    operand = plan.allocate()
    write_scales(
        [
            ScaleWrite(grid, plan, operand, row=sum(heads[:head]), band=32)
            for head, grid in enumerate(grids)
        ]
    )
    whole = pack_scales(torch.cat(grids), plan, band=32)
    assert torch.equal(plan.storage(operand), plan.storage(whole))


@pytest.mark.parametrize("layout", MATRICES)
@given(columns=st.lists(st.integers(0, 3), min_size=1, max_size=4), rows=st.integers(0, 70))
def test_heads_along_blocks_for_dgrad(layout, columns, rows, make_codes):
    """Any number of blocks per head, also where a word of four blocks holds those of two heads."""
    plan = layout(rows, sum(columns))
    grids = [make_codes(count, -(-rows // 32), seed=head) for head, count in enumerate(columns)]
    operand = plan.allocate()
    write_scales(
        [
            ScaleWrite(grid.t(), plan, operand, block=sum(columns[:head]), band=32)
            for head, grid in enumerate(grids)
        ]
    )
    whole = pack_scales(torch.cat(grids).t(), plan, band=32)
    assert torch.equal(plan.storage(operand), plan.storage(whole))


@pytest.mark.parametrize("layout", MATRICES)
@given(data=st.data())
def test_nothing_outside_of_the_rectangle_is_touched(layout, data, make_codes):
    rows, blocks = data.draw(st.integers(1, 140)), data.draw(st.integers(1, 9))
    plan = layout(rows, blocks)
    row, block = data.draw(st.integers(0, rows)), data.draw(st.integers(0, blocks))
    height = data.draw(st.integers(0, rows - row))
    width = data.draw(st.integers(0, blocks - block))
    codes = make_codes(height, width)
    operand = poisoned(plan)
    write_scales([ScaleWrite(codes, plan, operand, row=row, block=block)])
    expected = codes_in(poisoned(plan), plan).clone()
    values = codes if plan.cell == torch.uint8 else scales_of_codes(codes)
    expected[row : row + height, block : block + width] = values
    assert torch.equal(codes_in(operand, plan).nan_to_num(-1.0), expected.nan_to_num(-1.0))
    storage = plan.storage(operand)
    untouched = storage == 255 if plan.cell == torch.uint8 else storage.isnan()
    assert int(untouched.sum()) == plan.cells - codes.numel()


@pytest.mark.parametrize("layout", MATRICES)
def test_a_band_cut_in_the_middle_of_an_operand(layout, make_codes):
    """Heads of 40 rows: two bands each, the second with 8 rows."""
    plan, operand = layout(80, 3), layout(80, 3).allocate()
    one, two = make_codes(2, 3, seed=1), make_codes(2, 3, seed=2)
    write_scales(
        [
            ScaleWrite(one, plan, operand, band=32, rows=40),
            ScaleWrite(two, plan, operand, row=40, band=32),
        ]
    )
    lines = [*[one[0]] * 32, *[one[1]] * 8, *[two[0]] * 32, *[two[1]] * 8]
    assert torch.equal(plan.storage(operand), plan.storage(pack_scales(torch.stack(lines), plan)))


@pytest.mark.parametrize("layout", MATRICES)
def test_padding_of_a_given_operand_is_written(layout, make_codes):
    plan, codes = layout(70, 7), make_codes(70, 7)
    out = poisoned(plan)
    assert pack_scales(codes, plan, out=out) is out
    assert torch.equal(plan.storage(out), plan.storage(pack_scales(codes, plan)))


@pytest.mark.parametrize("layout", MATRICES)
def test_masked_groups(layout, make_codes):
    """Rows beyond a group's own hold the value of padding."""
    plan = StackedLayout(layout(8, 5), 3)
    operand, sizes = plan.allocate(), (3, 0, 8)
    codes = [make_codes(size, 5, seed=size) for size in sizes]
    write_scales([ScaleWrite(each, plan, operand, part=group) for group, each in enumerate(codes)])
    filled = [
        torch.cat([each, torch.full((8 - len(each), 5), 127 if layout is Float32Layout else 0)])
        for each in codes
    ]
    assert torch.equal(
        plan.storage(operand), plan.storage(pack_scales(torch.stack(filled).to(torch.uint8), plan))
    )


def test_parts_of_groups_along_k(make_codes):
    plan = KGroupedPackedLayout(8, (5, 0, 2))
    codes = make_codes(8, 7)
    operand = plan.allocate()
    write_scales(
        [
            ScaleWrite(codes[:, 5:], plan, operand, part=2),
            ScaleWrite(codes[:, :3], plan, operand, part=0),
            ScaleWrite(codes[:, 3:5], plan, operand, part=0, block=3),
        ]
    )
    assert torch.equal(operand, pack_scales(codes, plan))


@given(
    sizes=st.lists(st.integers(0, 40), max_size=5).map(tuple),
    alignment=st.sampled_from([1, 4, 32, 128]),
    blocks=st.integers(0, 9),
)
def test_groups_of_rows(sizes, alignment, blocks, make_codes):
    groups = RowGroups(sizes, alignment)
    plan = PackedLayout(groups.rows, blocks)
    codes = make_codes(sum(sizes), blocks)
    operand = plan.allocate()
    write_scales(groups.writes(codes, plan, operand))
    indices, result = groups.row_indices(), codes_in(operand, plan)
    assert torch.equal(result[indices >= 0], codes)
    assert not result[indices < 0].any()
    for group, (start, end) in enumerate(zip(groups.starts, groups.ends().tolist(), strict=True)):
        assert start % alignment == 0
        assert end - start == sizes[group]
        assert (indices[start:end] == group).all()
    assert indices.numel() == groups.rows
    assert indices.dtype == groups.ends().dtype == torch.int32


def test_many_operands_in_one_call(make_codes):
    plans = [layout(rows, 5) for layout in MATRICES for rows in (3, 130)]
    codes = [make_codes(plan.rows, 5, seed=i) for i, plan in enumerate(plans)]
    operands = [plan.allocate() for plan in plans]
    write_scales([ScaleWrite(*each) for each in zip(codes, plans, operands, strict=True)])
    for each, plan, operand in zip(codes, plans, operands, strict=True):
        assert torch.equal(plan.storage(operand), plan.storage(pack_scales(each, plan)))


def test_all_writes_are_checked_before_the_first(make_codes):
    plan, operand = PackedLayout(8, 4), PackedLayout(8, 4).allocate()
    good = ScaleWrite(make_codes(8, 4), plan, operand)
    with pytest.raises(ValueError, match="expected a rectangle inside of 8 rows and 4 blocks"):
        write_scales([good, ScaleWrite(make_codes(8, 4), plan, operand, row=1)])
    assert not operand.any()
