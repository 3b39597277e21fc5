"""Infinities, NaN and values beyond the range stay inside their block."""

import math

import pytest
import torch

from sshsdp_mxfp import MXFP8, dequantize, quantize

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_nan_of_either_sign_poisons_its_block_only(dtype, sign):
    x = torch.ones(64, 64, dtype=dtype)
    x[40, 3] = math.copysign(math.nan, sign)
    x[50, 9] = torch.inf  # NaN wins
    q = quantize(x, MXFP8((32, 32)))
    assert q.scale.view(torch.uint8).tolist() == [[119, 119], [255, 119]]
    bytes_ = q.data.view(torch.uint8)
    assert bytes_[32:, :32].unique().tolist() == [0x7F]
    values = dequantize(q)
    assert values[32:, :32].isnan().all()
    values[32:, :32] = 1.0
    assert torch.equal(values, torch.ones(64, 64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinity_saturates_and_its_neighbours_vanish(dtype):
    x = torch.ones(2, 64, dtype=dtype)
    x[1, 32], x[1, 33], x[1, 34] = torch.inf, -torch.inf, -1.0
    q = quantize(x, MXFP8())
    assert q.scale.view(torch.uint8).tolist() == [[119, 119], [119, 254]]
    assert q.data.view(torch.uint8)[1, 32:36].tolist() == [0x7E, 0xFE, 0x80, 0x00]


def test_no_finite_value_is_farther_off_than_half_a_step():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 256, generator=generator).mul(torch.exp2(torch.linspace(-40, 40, 256)))
    for block in ((1, 32), (32, 32)):
        q = quantize(x, MXFP8(block))
        codes = q.scale.view(torch.uint8).double() - 127
        step = torch.exp2(codes - 9).repeat_interleave(block[0], 0).repeat_interleave(32, 1)
        limit = torch.maximum(x.double().abs() / 16, step / 2)
        assert ((dequantize(q, torch.float64) - x.double()).abs() <= limit).all()
