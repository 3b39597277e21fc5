"""The same bytes as NVIDIA's own conversion functions, compiled for the host."""

import importlib.util
from pathlib import Path

import pytest
import torch

from sshsdp_mxfp import E2M1, E2M3, E3M2, E4M3, E5M2, MXFP4, MXFP6, MXFP8, bits, quantize
from sshsdp_mxfp.caster import nearest

ELEMENTS = [E4M3, E5M2, E2M3, E3M2, E2M1]
KINDS = {E4M3: MXFP8, E5M2: MXFP8, E2M3: MXFP6, E3M2: MXFP6, E2M1: MXFP4}


def load_module():
    path = Path(__file__).parent / "headers.py"
    spec = importlib.util.spec_from_file_location("mxfp_headers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def headers(tmp_path_factory):
    module = load_module()
    try:
        return module.Headers(tmp_path_factory.mktemp("headers"))
    except module.Unavailable as reason:
        pytest.skip(str(reason))


def patterns():
    """Every upper half of a float32 with lower halves around zero, a tie and the end.

    Rounding to at most 3 bits of mantissa tells no others apart.
    """
    low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    all_ = ((torch.arange(1 << 16) << 16).unsqueeze(1) | low).view(-1).to(torch.int32)
    return all_[~all_.view(torch.float32).isnan()]


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_every_element_that_a_float_can_become(headers, element):
    x = patterns()
    expected = headers.elements(x.view(torch.float32), element.name)
    shape = element.exponent_bits, element.mantissa_bits, element.largest_code
    assert torch.equal(bits.encode(x, *shape), expected.to(torch.int32))
    assert torch.equal(nearest(x, element), expected)
    if element.per_byte == 1 and element.bits == 8:
        clamped = x.view(torch.float32).clamp(-element.largest, element.largest)
        assert torch.equal(clamped.to(element.dtype).view(torch.uint8), expected)


def quantize_by_hand(headers, x, element):
    """One block per row, by the functions of the headers; one float32 product for the scale."""
    amax = x.abs().amax(1, keepdim=True)
    codes = headers.scales(amax * torch.tensor(1 / element.largest, dtype=torch.float32))
    inverse = torch.exp2(127.0 - codes.double()).float()
    return codes, headers.elements(x * inverse, element.name)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_blocks_of_every_maximum_of_bfloat16(headers, element):
    amax = torch.arange(1 << 16).to(torch.int16).view(torch.bfloat16).float()
    amax = amax[amax.isfinite()]
    generator = torch.Generator().manual_seed(0)
    x = amax.unsqueeze(1) * torch.rand(len(amax), 8, generator=generator)
    x[:, 3] = amax
    codes, elements = quantize_by_hand(headers, x, element)
    fmt = KINDS[element]((2, 8), element)
    pairs = x.repeat_interleave(2, 0)  # two equal rows: a block of two dimensions
    q = quantize(pairs, fmt)
    assert torch.equal(q.scale_codes, codes)
    if element.per_byte == 1:
        assert torch.equal(q.codes[::2], elements)
    else:
        assert torch.equal(q.codes[::2], elements[:, ::2] | elements[:, 1::2] << 4)


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_scales_beside_every_threshold(headers, element):
    """Around largest * 2^k, all floats within 64 ulps, and everything that is subnormal.

    One maximum of all is different: the float after largest * 2^-127. The product with 1 / largest
    is subnormal there and rounds to 2^-127, so the headers' scale has code 0, and the maximum,
    which is above the largest element, saturates. Here it has the next code.
    """
    powers = torch.exp2(torch.arange(-149.0, 128.0).double()) * element.largest
    center = powers[powers <= torch.finfo(torch.float32).max].float().view(torch.int32)
    near = (center.unsqueeze(1) + torch.arange(-64, 65, dtype=torch.int32)).clamp_(0, 0x7F7FFFFF)
    subnormal = torch.arange(0, 1 << 23, 61, dtype=torch.int32)
    pattern = torch.cat([near.view(-1), subnormal])
    amax = pattern.view(torch.float32)
    expected = headers.scales(amax * torch.tensor(1 / element.largest, dtype=torch.float32))
    after = int(torch.tensor(element.largest * 2.0**-127).view(torch.int32)) + 1
    assert expected[pattern == after].unique().tolist() == [0]
    expected[pattern == after] = 1
    fmt = KINDS[element]((1, 1) if element.per_byte == 1 else (1, 2), element)
    x = amax.unsqueeze(1).expand(-1, fmt.columns)
    assert torch.equal(quantize(x, fmt).scale_codes.view(-1), expected)
