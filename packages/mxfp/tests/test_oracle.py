"""Every byte equals exact rational arithmetic, whatever the bits of the input."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sshsdp_mxfp import MXFP8, quantize

BITS = {
    torch.float32: (32, torch.int32, 23),
    torch.float64: (64, torch.int64, 52),
    torch.bfloat16: (16, torch.int16, 7),
    torch.float16: (16, torch.int16, 10),
}


def blocks(dtype, count):
    """Bit patterns whose exponents lie close together, so that few elements are flushed."""
    size, _, mantissa = BITS[dtype]
    top = (1 << (size - 1 - mantissa)) - 1

    def near(exponent):
        exponents = st.integers(max(0, exponent - 14), exponent)
        return st.lists(
            st.tuples(st.booleans(), exponents, st.integers(0, (1 << mantissa) - 1)),
            min_size=count,
            max_size=count,
        )

    return st.integers(0, top - 1).flatmap(near)


def tensor(parts, dtype):
    size, integer, mantissa = BITS[dtype]
    patterns = [sign << (size - 1) | exp << mantissa | low for sign, exp, low in parts]
    signed = [bits - (1 << size) if bits >> (size - 1) else bits for bits in patterns]
    return torch.tensor(signed, dtype=integer).view(dtype)


def assert_exact(oracle, x, block):
    result = quantize(x, MXFP8(block))
    code, elements = oracle.block(x.flatten().tolist())
    assert result.scale.view(torch.uint8).item() == code
    assert result.data.view(torch.uint8).flatten().tolist() == elements


@pytest.mark.parametrize("dtype", BITS, ids=str)
@given(data=st.data())
def test_row_of_any_bits(oracle, dtype, data):
    x = tensor(data.draw(blocks(dtype, 32)), dtype)
    assert_exact(oracle, x, (1, 32))


@pytest.mark.parametrize("dtype", BITS, ids=str)
@settings(max_examples=5)
@given(data=st.data())
def test_square_of_any_bits(oracle, dtype, data):
    row = tensor(data.draw(blocks(dtype, 64)), dtype)
    order = torch.randperm(1024, generator=torch.Generator().manual_seed(0))
    assert_exact(oracle, row.repeat(16)[order].view(32, 32), (32, 32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_ties_and_their_neighbours(oracle, dtype):
    """Middles between E4M3 values, and the floats next to them: float64 is not rounded twice."""
    codes = torch.arange(126, dtype=torch.uint8)
    low = codes.view(torch.float8_e4m3fn).to(dtype)
    high = (codes + 1).view(torch.float8_e4m3fn).to(dtype)
    middle = (low + high) / 2
    for value in (middle, *(torch.nextafter(middle, to.to(dtype)) for to in (low, high))):
        for x in value.split(31):
            row = torch.cat([torch.full((32 - len(x),), 448.0, dtype=dtype), x])
            assert_exact(oracle, row, (1, 32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_scales_beside_every_threshold(oracle, dtype):
    """448 * 2^k and its neighbours, over the whole range of the dtype and beyond the scales'."""
    exponents = torch.arange(-149 if dtype == torch.float32 else -300, 130, dtype=torch.float64)
    exact = (448 * torch.exp2(exponents)).to(dtype)
    exact = exact[exact.isfinite()]
    beside = [torch.nextafter(exact, torch.tensor(to, dtype=dtype)) for to in (0.0, torch.inf)]
    amax = torch.cat([exact, *beside])
    amax = amax[amax.isfinite()]
    x = torch.zeros(len(amax), 32, dtype=dtype)
    x[:, 5] = -amax
    codes = quantize(x, MXFP8()).scale.view(torch.uint8).flatten().tolist()
    assert codes == [oracle.scale([value]) for value in amax.tolist()]
