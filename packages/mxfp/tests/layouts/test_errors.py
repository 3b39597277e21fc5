"""Bad input is refused with what was expected and what came, before anything is written."""

import pytest
import torch

from sshsdp_mxfp import MXFP8, MXTensor
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
    unpack_grid,
    write_scales,
)

U8 = torch.uint8


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: PackedLayout(-1, 4), "expected rows >= 0, got -1"),
        (lambda: SwizzledLayout(1, -4), "expected blocks >= 0, got -4"),
        (lambda: PlainLayout(-1, 4), "expected rows >= 0, got -1"),
        (lambda: PlainLayout(1, 4, torch.int32), "expected cells of uint8 or float32, got"),
        (lambda: StackedLayout(PackedLayout(1, 4), -1), "expected groups >= 0, got -1"),
        (lambda: KGroupedPackedLayout(8, (3, -1)), "expected blocks of group 1 >= 0, got -1"),
        (lambda: KGroupedPackedLayout(70, (3,)), "multiple of 4, got 70; pad them to 72"),
        (lambda: KGroupedPackedLayout(4, (1,) * 129), "expected at most 128 groups, got 129"),
        (lambda: RowGroups((3, -1)), "expected size of group 1 >= 0, got -1"),
        (lambda: RowGroups((3,), 0), "expected an alignment of at least 1, got 0"),
    ],
)
def test_plans(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize(
    ("codes", "options", "text"),
    [
        (torch.zeros(8, 4), {}, r"expected codes of torch\.uint8 .*, got torch\.float32; convert"),
        (torch.zeros(8, 4, dtype=torch.int8), {}, r"got torch\.int8"),
        (torch.zeros(8, dtype=U8), {}, r"expected a matrix of scales, got shape \[8\]"),
        (torch.zeros(9, 4, dtype=U8), {}, "inside of 8 rows and 4 blocks, got rows 0 to 9"),
        (torch.zeros(8, 5, dtype=U8), {}, "and blocks 0 to 5"),
        (torch.zeros(4, 4, dtype=U8), {"row": 5}, "got rows 5 to 9"),
        (torch.zeros(4, 4, dtype=U8), {"row": -1}, "got rows -1 to 3"),
        (torch.zeros(4, 1, dtype=U8), {"block": -1}, "blocks -1 to 0"),
        (torch.zeros(8, 4, dtype=U8), {"part": 1}, "expected a part below 1, got 1"),
        (torch.zeros(8, 4, dtype=U8), {"band": 0}, "expected a band of at least 1 row, got 0"),
        (torch.zeros(3, 4, dtype=U8), {"band": 4}, "got rows 0 to 12"),
        (torch.zeros(2, 4, dtype=U8), {"rows": 3}, "expected 3 rows of scales for 3 rows"),
        (torch.zeros(2, 4, dtype=U8), {"rows": 4, "band": 4}, "expected 1 rows of scales for 4"),
        (torch.zeros(8, 4, dtype=U8, device="meta"), {}, "expected scales on cpu .*, got meta"),
    ],
)
def test_writes(codes, options, text):
    plan = PackedLayout(8, 4)
    operand = plan.allocate()
    with pytest.raises(ValueError, match=text):
        write_scales([ScaleWrite(codes, plan, operand, **options)])
    assert not operand.any()


def test_floats_only_where_a_layout_has_floats():
    with pytest.raises(ValueError, match=r"got torch\.float64"):
        pack_scales(torch.ones(8, 4, dtype=torch.float64), Float32Layout(8, 4))


@pytest.mark.parametrize(
    ("scales", "plan", "text"),
    [
        (torch.zeros(7, 4, dtype=U8), PackedLayout(8, 4), r"of shape \[8, 4\], got \[7, 4\]"),
        (torch.zeros(8, 3, dtype=U8), SwizzledLayout(8, 4), r"of shape \[8, 4\], got \[8, 3\]"),
        ([torch.zeros(8, 3, dtype=U8)], PackedLayout(8, 4), "expected scales of 4 blocks, got 3"),
        ([torch.zeros(7, 4, dtype=U8)], PackedLayout(8, 4), "expected 8 rows of scales .*, got 7"),
        ([], PackedLayout(8, 4), "expected 1 matrices of scales, got 0"),
        (
            torch.zeros(8, 4, dtype=U8),
            StackedLayout(PackedLayout(8, 4), 2),
            r"of shape \[2, 8, 4\], got \[8, 4\]",
        ),
        (
            torch.zeros(8, 8, dtype=U8),
            KGroupedPackedLayout(8, (3, 4)),
            r"of shape \[8, 7\], got \[8, 8\]",
        ),
    ],
)
def test_scales_of_another_shape(scales, plan, text):
    out = plan.operand(torch.full((plan.cells,), 99, dtype=U8))
    with pytest.raises(ValueError, match=text):
        pack_scales(scales, plan, out=out)
    assert (plan.storage(out) == 99).all()


def test_a_quantized_tensor_is_not_its_scales():
    q = MXTensor.empty((32, 32), MXFP8())
    with pytest.raises(TypeError, match=r"got MXTensor; of an MXTensor give the \.scale"):
        pack_scales(q, PackedLayout(32, 1))


def test_bands():
    plan = PackedLayout(8, 4)
    with pytest.raises(ValueError, match="expected a band of at least 1 row, got 0"):
        pack_scales(torch.zeros(8, 4, dtype=U8), plan, band=0)
    with pytest.raises(ValueError, match="expected a band of at least 1 row, got -1"):
        unpack_grid(plan.allocate(), plan, -1)


def test_groups_of_rows():
    groups = RowGroups((3, 5), 4)
    plan = PackedLayout(12, 2)
    with pytest.raises(ValueError, match=r"expected scales of 8 rows, got shape \[9, 2\]"):
        groups.writes(torch.zeros(9, 2, dtype=U8), plan, plan.allocate())
    other = PackedLayout(8, 2)
    with pytest.raises(ValueError, match="expected a layout of 12 rows, got 8"):
        groups.writes(torch.zeros(8, 2, dtype=U8), other, other.allocate())
