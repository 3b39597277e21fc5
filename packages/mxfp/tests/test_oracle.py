"""Every byte equals exact rational arithmetic, whatever the bits of the input."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sshsdp_mxfp import E2M1, E2M3, E3M2, E4M3, E5M2, MXFP4, MXFP6, MXFP8, quantize

BITS = {
    torch.float32: (32, torch.int32, 23),
    torch.float64: (64, torch.int64, 52),
    torch.bfloat16: (16, torch.int16, 7),
    torch.float16: (16, torch.int16, 10),
}
KINDS = {E4M3: MXFP8, E5M2: MXFP8, E2M3: MXFP6, E3M2: MXFP6, E2M1: MXFP4}
RULES = ["rceil", "floor", "ceil", "even"]


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


def unpacked(q):
    """Codes in the order of elements."""
    if q.format.element.per_byte == 1:
        return q.codes.flatten().tolist()
    return torch.stack([q.codes & 15, q.codes >> 4], -1).flatten().tolist()


def assert_exact(oracles, x, fmt):
    result = quantize(x, fmt)
    oracle = oracles(fmt.element.name, fmt.rule)
    code, elements = oracle.block(x.flatten().tolist())
    assert result.scale_codes.item() == code
    assert unpacked(result) == elements


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize("element", KINDS, ids=str)
@settings(max_examples=30)
@given(data=st.data(), rule=st.sampled_from(RULES))
def test_row_of_any_bits(oracles, dtype, element, rule, data):
    x = tensor(data.draw(blocks(dtype, 32)), dtype)
    assert_exact(oracles, x, KINDS[element]((1, 32), element, rule))


@pytest.mark.parametrize("dtype", BITS, ids=str)
@settings(max_examples=5)
@given(data=st.data())
def test_square_of_any_bits(oracles, dtype, data):
    row = tensor(data.draw(blocks(dtype, 64)), dtype)
    order = torch.randperm(1024, generator=torch.Generator().manual_seed(0))
    assert_exact(oracles, row.repeat(16)[order].view(32, 32), MXFP8((32, 32)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("element", KINDS, ids=str)
def test_ties_and_their_neighbours(oracles, dtype, element):
    """Middles between elements, and the floats next to them: float64 is not rounded twice."""
    values = torch.tensor([float(value) for value in oracles(element.name).magnitudes], dtype=dtype)
    low, high = values[:-1], values[1:]
    middle = (low + high) / 2
    for value in (middle, *(torch.nextafter(middle, to) for to in (low, high))):
        for x in value.split(31):
            fill = torch.full((32 - len(x),), element.largest, dtype=dtype)
            assert_exact(oracles, torch.cat([fill, x]), KINDS[element]((1, 32), element))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("element", "rule"), [*itertools.product(KINDS, RULES)], ids=lambda value: str(value)
)
def test_scales_beside_every_threshold(oracles, dtype, element, rule):
    """Where rules change their mind, over the whole range of the dtype and beyond the scales'."""
    exponents = torch.arange(-149 if dtype == torch.float32 else -300, 130, dtype=torch.float64)
    halves = 2 - 2.0 ** -(element.mantissa_bits + 1)  # where "even" rounds up to the next power
    factors = torch.tensor([element.largest, 1.0, halves], dtype=torch.float64).unsqueeze(1)
    exact = (factors * torch.exp2(exponents)).to(dtype).flatten()
    exact = exact[exact.isfinite()]
    beside = [torch.nextafter(exact, torch.tensor(to, dtype=dtype)) for to in (0.0, torch.inf)]
    amax = torch.cat([exact, *beside])
    amax = amax[amax.isfinite()]
    x = torch.zeros(len(amax), 4, dtype=dtype)
    x[:, 1] = -amax
    fmt = KINDS[element]((1, 4), element, rule)
    codes = quantize(x, fmt).scale_codes.flatten().tolist()
    oracle = oracles(element.name, rule)
    assert codes == [oracle.scale([value]) for value in amax.tolist()]


@pytest.mark.parametrize("element", KINDS, ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_scales_of_every_maximum_of_bfloat16(oracles, element, rule):
    amax = torch.arange(0x7F80, dtype=torch.int16).view(torch.bfloat16)
    fmt = KINDS[element]((1, 2), element, rule)
    codes = quantize(amax.unsqueeze(1).expand(-1, 2), fmt).scale_codes.flatten().tolist()
    oracle = oracles(element.name, rule)
    assert codes == [oracle.scale([value]) for value in amax.tolist()]
