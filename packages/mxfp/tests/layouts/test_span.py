"""A rank's slice of an operand's storage equals that slice of the whole."""

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
    pack_span,
    tiles,
)

PLANS = st.sampled_from(
    [
        PlainLayout(33, 5),
        PackedLayout(70, 7),
        Float32Layout(70, 7),
        SwizzledLayout(140, 5),
        StackedLayout(PackedLayout(33, 3), 3),
        StackedLayout(SwizzledLayout(9, 3), 2),
        StackedLayout(PackedLayout(9, 3), 0),
        KGroupedPackedLayout(36, (3, 0, 6)),
        KGroupedSwizzledLayout(36, (3, 0, 6)),
        PackedLayout(0, 7),
    ]
)


@given(plan=PLANS, data=st.data(), band=st.sampled_from([1, 32]), chunk=st.integers(1, 400))
def test_any_span(plan, data, band, chunk, make_codes):
    *groups, rows, blocks = plan.logical_shape
    scales = make_codes(*groups, -(-rows // band), blocks)
    start = data.draw(st.integers(0, plan.cells))
    stop = data.draw(st.integers(start, plan.cells))
    whole = plan.storage(pack_scales(scales, plan, band=band))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "CHUNK", chunk)
        span = pack_span(scales, plan, start, stop, band=band)
        out = torch.full_like(span, 3)
        assert pack_span(scales, plan, start, stop, band=band, out=out) is out
    assert torch.equal(span, whole[start:stop])
    assert torch.equal(out, whole[start:stop])


@pytest.mark.parametrize("layout", [PackedLayout, SwizzledLayout])
def test_ranks_of_a_packed_weight(layout, make_codes):
    """Heads' grids, side by side for dgrad and below one another for forward; four ranks."""
    grids = [make_codes(2, 12, seed=head) for head in range(3)]
    forward, dgrad = layout(3 * 64, 12), layout(12 * 32, 6)
    for plan, grid in ((forward, torch.cat(grids)), (dgrad, torch.cat(grids).t())):
        each = plan.cells // 4
        slices = [
            pack_span(grid, plan, rank * each, (rank + 1) * each, band=32) for rank in range(4)
        ]
        assert torch.equal(torch.cat(slices), plan.storage(pack_scales(grid, plan, band=32)))


def test_what_is_refused(make_codes):
    plan, codes = PackedLayout(8, 4), make_codes(8, 4)
    with pytest.raises(ValueError, match="expected a span inside of 32 cells, got 3 to 33"):
        pack_span(codes, plan, 3, 33)
    with pytest.raises(ValueError, match="got 3 to 2"):
        pack_span(codes, plan, 3, 2)
    with pytest.raises(ValueError, match=r"expected scales of shape \[8, 4\], got \[1, 4\]"):
        pack_span(codes[:1], plan, 0, 8)
    with pytest.raises(ValueError, match=r"expected out of torch.uint8 and shape \[8\], got .*32"):
        pack_span(codes, plan, 0, 8, out=torch.empty(8))
    with pytest.raises(ValueError, match="expected out on cpu, got meta"):
        pack_span(codes, plan, 0, 8, out=torch.empty(8, dtype=torch.uint8, device="meta"))
    with pytest.raises(
        ValueError, match=r"expected codes of torch\.uint8 or .*, got torch\.float32"
    ):
        pack_span(codes.float(), plan, 0, 8)
