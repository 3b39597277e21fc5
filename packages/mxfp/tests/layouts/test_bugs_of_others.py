"""Reports on layouts in other systems, with their inputs; ``docs/bugs_of_others.md`` lists them."""

import pytest
import torch

from sshsdp_mxfp.layouts import (
    PackedLayout,
    ScaleWrite,
    StackedLayout,
    SwizzledLayout,
    codes_of_scales,
    pack_scales,
    scales_of_codes,
    unpack_scales,
    write_scales,
)


def of_nan(plan):
    """An operand in memory that holds 0xFF everywhere."""
    return plan.operand(torch.full((plan.cells,), 255, dtype=torch.uint8))


def test_padding_rows_are_never_written(make_codes):
    """vllm-project/vllm#49783: a kernel traps on what an empty tensor holds in rows 70 and 71."""
    plan = PackedLayout(70, 8)
    out = pack_scales(make_codes(70, 8), plan, out=of_nan(plan))
    words = plan.storage(out).view(torch.int32).view(2, 72)
    assert not words[:, 70:].any()


def test_rows_behind_the_mask_are_never_written(make_codes):
    """sgl-project/sglang#32386: groups of 3 and 0 of at most 8 rows; kernels read all 8."""
    plan = StackedLayout(PackedLayout(8, 4), 2)
    operand = plan.allocate()
    write_scales([ScaleWrite(make_codes(3, 4), plan, operand)])
    assert not operand[0, 3:].any()
    assert not operand[1].any()


def test_scales_that_are_no_powers_of_two_are_packed():
    """sgl-project/sglang#39193: the mantissa was cut off, results were a quarter wrong."""
    with pytest.raises(ValueError, match=r"got 0\.003\d* at \[0, 0\]"):
        codes_of_scales(torch.full((4, 4), 0.003))


def test_contiguous_destroys_the_strides(make_codes):
    """PaddlePaddle/PaddleFleet#1474: passes with one column of words, wrong with two."""
    plan = PackedLayout(64, 256 // 32)
    with pytest.raises(ValueError, match=r"\.contiguous\(\) and \.clone\(\) destroy this layout"):
        plan.check(pack_scales(make_codes(64, 8), plan).contiguous())


def test_rows_that_are_no_multiple_of_four(make_codes):
    """deepseek-ai/DeepGEMM#141: an assertion; the pitch is padded instead."""
    codes, plan = make_codes(70, 7), PackedLayout(70, 7)
    assert plan.stride == (1, 72)
    assert torch.equal(unpack_scales(pack_scales(codes, plan), plan).view(torch.uint8), codes)


def test_scales_on_another_device_than_the_operand(make_codes):
    """deepseek-ai/DeepGEMM#407: a segmentation fault."""
    plan = PackedLayout(8, 4)
    with pytest.raises(ValueError, match="expected scales on meta where the operand is, got cpu"):
        pack_scales(make_codes(8, 4), plan, out=plan.allocate("meta"))


def test_decoding_compares_with_128_as_a_float():
    """sgl-project/sglang#25519: code 134, the scale 128.0, became NaN, and 255 infinity."""
    scales = scales_of_codes(torch.tensor([134, 255], dtype=torch.uint8))
    assert scales[0] == 128.0
    assert scales[1].isnan()


def test_padded_blocks_of_a_swizzle_are_not_written(make_codes):
    """NVIDIA/TransformerEngine#3070: hidden size 2880 has 90 blocks, padded to 92."""
    plan = SwizzledLayout(160, 2880 // 32)
    out = pack_scales(make_codes(160, 90), plan, out=of_nan(plan))
    assert not (out.view(torch.uint8) == 255).any()


def test_offsets_beyond_32_bits():
    """pytorch/ao#4201: offsets of large tensors overflowed."""
    plan = SwizzledLayout(1 << 22, 1 << 12)
    row, block = torch.tensor(plan.rows - 1), torch.tensor(plan.blocks - 1)
    assert int(plan.offset(row, block)) == plan.cells - 1 == (1 << 34) - 1
