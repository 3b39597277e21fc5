"""Plans say what a kernel gets; tensors with other strides are refused."""

import pytest
import torch

from sshsdp_mxfp.layouts import (
    Float32Layout,
    KGroupedPackedLayout,
    KGroupedSwizzledLayout,
    PackedLayout,
    PlainLayout,
    StackedLayout,
    SwizzledLayout,
    pack_scales,
    unpack_grid,
    unpack_scales,
)

E8M0 = torch.float8_e8m0fnu


@pytest.mark.parametrize(
    ("plan", "dtype", "shape", "stride", "nbytes", "alignment", "padding"),
    [
        (PlainLayout(70, 7), E8M0, (70, 7), (7, 1), 490, 1, 0),
        (PlainLayout(2, 3, torch.float32), torch.float32, (2, 3), (3, 1), 24, 4, 0),
        (PackedLayout(4096, 128), torch.int32, (4096, 32), (1, 4096), 512 << 10, 16, 0),
        (PackedLayout(70, 7), torch.int32, (70, 2), (1, 72), 576, 16, 86),
        (PackedLayout(1, 5), torch.int32, (1, 2), (1, 4), 32, 16, 27),
        (Float32Layout(70, 7), torch.float32, (70, 7), (1, 72), 2016, 16, 14),
        (SwizzledLayout(4096, 128), E8M0, (1024, 512), (512, 1), 512 << 10, 16, 0),
        (SwizzledLayout(130, 5), E8M0, (64, 32), (32, 1), 2048, 16, 1398),
        (
            StackedLayout(PackedLayout(70, 7), 3),
            torch.int32,
            (3, 70, 2),
            (144, 1, 72),
            1728,
            16,
            258,
        ),
        (StackedLayout(SwizzledLayout(130, 5), 3), E8M0, (3, 2048), (2048, 1), 6144, 16, 4194),
        (StackedLayout(Float32Layout(5, 2), 2), torch.float32, (2, 5, 2), (16, 1, 8), 128, 16, 12),
        (KGroupedPackedLayout(72, (7, 0, 4)), torch.int32, (3, 72), (72, 1), 864, 16, 72),
        (KGroupedSwizzledLayout(130, (7, 4)), E8M0, (256, 12), (12, 1), 3072, 16, 1642),
        (
            PackedLayout(1 << 40, 1 << 20),
            torch.int32,
            (1 << 40, 1 << 18),
            (1, 1 << 40),
            1 << 60,
            16,
            0,
        ),
    ],
    ids=lambda value: value.describe().split(":")[0] if hasattr(value, "describe") else "",
)
def test_plans_need_no_tensors(plan, dtype, shape, stride, nbytes, alignment, padding):
    assert (plan.dtype, plan.shape, plan.stride) == (dtype, shape, stride)
    assert (plan.nbytes, plan.alignment, plan.padding) == (nbytes, alignment, padding)
    if nbytes < 1 << 30:
        operand = plan.allocate()
        assert (operand.dtype, tuple(operand.shape), operand.stride()) == (dtype, shape, stride)
        assert plan.storage(operand).nbytes == nbytes


def test_a_plan_in_words():
    assert PackedLayout(70, 7).describe() == (
        "PackedLayout of [70, 7] scales: int32 [70, 2], strides (1, 72), "
        "576 bytes at multiples of 16, 86 of 576 cells padding"
    )


@pytest.mark.parametrize(
    "plan", [PackedLayout(70, 9), PackedLayout(64, 9), Float32Layout(70, 9), PackedLayout(1, 9)]
)
def test_copies_that_lose_the_strides_are_refused(plan, make_codes):
    operand = pack_scales(make_codes(plan.rows, plan.blocks), plan)
    lost = operand.contiguous()
    assert torch.equal(lost, operand)
    for use in (plan.check, plan.storage):
        with pytest.raises(ValueError, match=r"expected strides .*: \.contiguous\(\) and \.clone"):
            use(lost)
    for read in (unpack_scales, unpack_grid):
        with pytest.raises(ValueError, match=r"copy layout\.storage"):
            read(lost, plan)
    with pytest.raises(ValueError, match="expected strides"):
        pack_scales(make_codes(plan.rows, plan.blocks), plan, out=lost)


def test_contiguous_of_one_column_keeps_the_layout(make_codes):
    """Torch leaves such a tensor as it is; it hides what happens to the next larger one."""
    plan = PackedLayout(70, 4)
    operand = pack_scales(make_codes(70, 4), plan)
    assert operand.contiguous() is operand
    plan.check(operand)


@pytest.mark.parametrize("plan", [PackedLayout(70, 9), StackedLayout(Float32Layout(5, 9), 2)])
def test_a_copy_of_the_storage_keeps_the_layout(plan, make_codes, tmp_path):
    codes = make_codes(*plan.logical_shape)
    operand = pack_scales(codes, plan)
    copy = plan.operand(plan.storage(operand).clone())
    torch.save(plan.storage(operand), tmp_path / "scales")
    loaded = plan.operand(torch.load(tmp_path / "scales"))
    for same in (copy, loaded):
        plan.check(same)
        assert torch.equal(plan.storage(same), plan.storage(operand))


@pytest.mark.parametrize("plan", [PackedLayout(70, 9), Float32Layout(70, 9), SwizzledLayout(70, 9)])
def test_an_operand_inside_of_a_larger_buffer(plan, make_codes):
    buffer = torch.full((32 + plan.nbytes + 16,), 99, dtype=torch.uint8)
    out = plan.operand(buffer[32 : 32 + plan.nbytes])
    codes = make_codes(70, 9)
    pack_scales(codes, plan, out=out)
    whole = plan.storage(pack_scales(codes, plan)).view(torch.uint8)
    assert torch.equal(buffer[32 : 32 + plan.nbytes], whole)
    assert (buffer[:32] == 99).all()
    assert (buffer[32 + plan.nbytes :] == 99).all()


def test_storage_that_does_not_fit():
    plan, buffer = PackedLayout(70, 9), torch.zeros(2000, dtype=torch.uint8)
    with pytest.raises(ValueError, match="expected storage at a multiple of 16 bytes, got byte 8"):
        plan.operand(buffer[8 : 8 + plan.nbytes])
    with pytest.raises(ValueError, match=r"expected contiguous storage of shape \[864\], got"):
        plan.operand(buffer[:860])
    with pytest.raises(ValueError, match="with strides"):
        plan.operand(buffer[: 2 * plan.nbytes : 2])
    with pytest.raises(ValueError, match=r"expected storage of uint8 or torch\.uint8, got .*int32"):
        plan.operand(torch.zeros(216, dtype=torch.int32))


def test_an_operand_without_memory_for_its_padding():
    """The last column ends at the last row: what fills it can't reach the padding behind."""
    short = torch.zeros(72 + 70, dtype=torch.int32).as_strided((70, 2), (1, 72))
    with pytest.raises(ValueError, match=r"expected memory for 144 elements .*, got 142; make"):
        PackedLayout(70, 7).storage(short)


def test_another_dtype_or_shape():
    plan = PackedLayout(70, 7)
    with pytest.raises(ValueError, match=r"expected an operand of torch\.int32 .*\[70, 2\], got"):
        plan.check(torch.zeros(70, 2))
    with pytest.raises(ValueError, match=r"got torch\.int32 and \[71, 2\]"):
        plan.check(PackedLayout(71, 7).allocate())


def test_meta_tensors_are_planned_too():
    operand = PackedLayout(70, 7).allocate("meta")
    assert operand.is_meta
    assert operand.stride() == (1, 72)
