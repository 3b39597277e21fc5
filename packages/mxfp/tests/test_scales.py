"""All scale codes: reached, told apart, and turned back into values."""

import pytest
import torch

from sshsdp_mxfp import MXFP8, MXTensor, dequantize, quantize


def all_elements():
    """The 256 E4M3 bytes as rows of 32."""
    return torch.arange(256, dtype=torch.uint8).view(8, 32).view(torch.float8_e4m3fn)


def with_code(data, code):
    scale = torch.full((*data.shape[:-1], data.shape[-1] // 32), code, dtype=torch.uint8)
    return MXTensor(data, scale.view(torch.float8_e8m0fnu), MXFP8(), data.shape)


@pytest.mark.parametrize("block", [(1, 32), (32, 32)])
def test_every_code_comes_back(block):
    """Blocks of all finite elements under each code, quantized from their exact values."""
    finite = torch.tensor([byte for byte in range(256) if byte & 0x7F != 0x7F], dtype=torch.uint8)
    row = finite.repeat(2)[: 32 * 8].view(8, 32)
    row[:, 0] = 0x7E  # the largest element fixes the scale
    data = row.repeat(4, 1).view(torch.float8_e4m3fn)
    for code in range(255):
        shape = (32 // block[0], 1)
        scale = torch.full(shape, code, dtype=torch.uint8).view(torch.float8_e8m0fnu)
        values = dequantize(MXTensor(data, scale, MXFP8(block), data.shape), torch.float64)
        again = quantize(values, MXFP8(block))
        assert again.scale.view(torch.uint8).unique().tolist() == [code]
        assert torch.equal(again.data.view(torch.uint8), data.view(torch.uint8))


def test_values_are_exact_in_float64(oracle):
    for code in range(256):
        values = dequantize(with_code(all_elements(), code), torch.float64).flatten().tolist()
        for byte, value in enumerate(values):
            exact = oracle.value(byte, code)
            assert value != value if exact is None else value == exact


def test_float32_is_exact_or_infinite():
    for code in range(255):
        t = with_code(all_elements(), code)
        exact, single = dequantize(t, torch.float64), dequantize(t)
        assert torch.equal(
            single.nan_to_num(1.5, 2.5, 3.5), exact.float().nan_to_num(1.5, 2.5, 3.5)
        )
        if code < 247:
            assert torch.equal(single.double().nan_to_num(0), exact.nan_to_num(0))


def test_bfloat16_is_exact_for_codes_from_3_to_246():
    for code in range(3, 247):
        t = with_code(all_elements(), code)
        exact = dequantize(t, torch.float64)
        assert torch.equal(
            dequantize(t, torch.bfloat16).double().nan_to_num(0), exact.nan_to_num(0)
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_values_are_rounded_to_nearest(dtype):
    for code in (0, 1, 2, 100, 112, 127, 140, 250):
        t = with_code(all_elements(), code)
        expected = dequantize(t).to(dtype)
        torch.testing.assert_close(dequantize(t, dtype), expected, rtol=0, atol=0, equal_nan=True)


def test_zeros_keep_their_sign_both_ways():
    x = torch.zeros(1, 32)
    x[0, ::2] = -0.0
    q = quantize(x, MXFP8())
    assert q.data.view(torch.uint8).flatten().tolist() == [0x80, 0x00] * 16
    assert torch.equal(dequantize(q).signbit(), x.signbit())
