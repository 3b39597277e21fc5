"""All codes of scales and elements: reached, told apart, and turned back into values."""

import pytest
import torch

from sshsdp_mxfp import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    MXFP4,
    MXFP6,
    MXFP8,
    MXTensor,
    dequantize,
    quantize,
)
from sshsdp_mxfp import bits as definition

KINDS = {E4M3: MXFP8, E5M2: MXFP8, E2M3: MXFP6, E3M2: MXFP6, E2M1: MXFP4}


def with_code(codes, code, element, rows=1):
    """Element codes [rows, 32] under one scale code, as blocks of rows x 32."""
    stored = codes if element.per_byte == 1 else codes[:, ::2] | codes[:, 1::2] << 4
    fmt = KINDS[element]((rows, 32), element)
    scale = torch.full(fmt.grid_shape(codes.shape), code, dtype=torch.uint8)
    data = stored.view(element.dtype)
    return MXTensor(data, scale.view(torch.float8_e8m0fnu), fmt, codes.shape)


def all_elements(element, finite_only=False):
    """All codes, in rows of 32."""
    codes = torch.arange(1 << element.bits, dtype=torch.uint8)
    if finite_only:
        magnitude = codes & ((1 << (element.bits - 1)) - 1)
        codes = codes[magnitude <= element.largest_code]
    return codes.repeat(-(-32 // len(codes)) + 1)[: -(-len(codes) // 32) * 32].view(-1, 32)


@pytest.mark.parametrize("element", KINDS, ids=str)
@pytest.mark.parametrize("square", [False, True])
def test_every_code_comes_back(element, square):
    """Blocks of all finite elements under each code, quantized from their exact values."""
    codes = all_elements(element, finite_only=True)
    codes[:, 0] = element.largest_code  # fixes the scale
    codes = codes.repeat(32, 1)[:32]
    for code in range(255):
        t = with_code(codes, code, element, rows=32 if square else 1)
        again = quantize(dequantize(t, torch.float64), t.format)
        assert again.scale_codes.unique().tolist() == [code]
        assert torch.equal(again.codes, t.codes)


@pytest.mark.parametrize("element", KINDS, ids=str)
def test_values_are_exact_in_float64(oracles, element):
    codes = all_elements(element)
    oracle = oracles(element.name)
    for code in range(256):
        values = dequantize(with_code(codes, code, element), torch.float64).flatten().tolist()
        for byte, value in zip(codes.flatten().tolist(), values, strict=True):
            exact = oracle.value(byte, code)
            assert value - value != 0 if exact is None else value == exact


@pytest.mark.parametrize("element", [E4M3, E5M2], ids=str)
def test_values_of_elements_are_those_of_torch(element):
    codes = torch.arange(256, dtype=torch.uint8)
    shape = element.exponent_bits, element.mantissa_bits, element.largest_code
    ours = definition.decode_bits(codes.to(torch.int32), *shape).view(torch.float32)
    torch.testing.assert_close(
        ours, codes.view(element.dtype).float(), rtol=0, atol=0, equal_nan=True
    )
    assert torch.equal(ours.signbit(), codes >= 128)


@pytest.mark.parametrize("element", KINDS, ids=str)
def test_float32_is_exact_or_infinite(element):
    codes = all_elements(element, finite_only=True)
    for code in range(255):
        t = with_code(codes, code, element)
        exact, single = dequantize(t, torch.float64), dequantize(t)
        assert torch.equal(single, exact.float())
        if code < 255 - element.largest_exponent:
            assert torch.equal(single.double(), exact)


def test_bfloat16_is_exact_for_codes_from_3_to_246():
    codes = all_elements(E4M3, finite_only=True)
    for code in range(3, 247):
        t = with_code(codes, code, E4M3)
        assert torch.equal(dequantize(t, torch.bfloat16).double(), dequantize(t, torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("element", KINDS, ids=str)
def test_narrow_values_are_rounded_to_nearest(element, dtype):
    codes = all_elements(element)
    for code in (0, 1, 2, 100, 112, 127, 140, 250):
        t = with_code(codes, code, element)
        expected = dequantize(t).to(dtype)
        torch.testing.assert_close(dequantize(t, dtype), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("element", KINDS, ids=str)
def test_zeros_keep_their_sign_both_ways(element):
    x = torch.zeros(1, 32)
    x[0, ::2] = -0.0
    values = dequantize(quantize(x, KINDS[element]((1, 32), element)))
    assert torch.equal(values.signbit(), x.signbit())


def test_descriptions_of_elements_follow_from_their_widths():
    facts = {
        E4M3: (8, 7, 448.0, 2.0**-9),
        E5M2: (8, 15, 57344.0, 2.0**-16),
        E2M3: (6, 1, 7.5, 0.125),
        E3M2: (6, 3, 28.0, 0.0625),
        E2M1: (4, 1, 6.0, 0.5),
    }
    for element, expected in facts.items():
        assert (element.bits, element.bias, element.largest, element.smallest) == expected
