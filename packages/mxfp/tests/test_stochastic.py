"""Stochastic rounding: unbiased, and a function of the place in the logical tensor alone."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_mxfp import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    MXFP4,
    MXFP6,
    MXFP8,
    Stochastic,
    bits,
    dequantize,
    quantize,
)
from sshsdp_mxfp.geometry import Rectangle
from sshsdp_mxfp.rounding import philox

KINDS = {E4M3: MXFP8, E5M2: MXFP8, E2M3: MXFP6, E3M2: MXFP6, E2M1: MXFP4}
BITS = 30  # random bits that are used


def encode(value, random, element):
    """Codes of one float under many random numbers."""
    shape = element.exponent_bits, element.mantissa_bits, element.largest_code
    pattern = torch.tensor(value, dtype=torch.float32).view(torch.int32).expand(random.shape)
    return bits.encode_stochastic(pattern, random, *shape)


# Published with the reference implementation (Random123, kat_vectors).
KNOWN = [
    ([0] * 4, (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_numbers(counter, key, expected):
    words = philox(tuple(torch.tensor([word]) for word in counter), key)
    assert [f"{int(word):08x}" for word in words] == expected.split()


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 20), st.integers(1, 20))
def test_numbers_belong_to_places(top, left, height, width):
    rounding = Stochastic(1 << 63, 5, 6)
    whole = rounding.numbers(Rectangle(0, 70, 0, 70))
    part = rounding.numbers(Rectangle(top, top + height, left, left + width))
    assert torch.equal(part, whole[top : top + height, left : left + width])


def test_seed_parameter_ordinal_row_and_column_all_matter():
    places = Rectangle(0, 8, 0, 8)
    others = [Stochastic(1), Stochastic(1 << 32), Stochastic(0, 1), Stochastic(0, 0, 1)]
    drawn = torch.cat([r.numbers(places).flatten() for r in [Stochastic(0), *others]])
    assert len(drawn.unique()) == 5 * 64


@pytest.mark.parametrize("element", KINDS, ids=str)
@given(data=st.data(), sign=st.sampled_from([1, -1]))
def test_the_probability_of_rounding_up_is_the_part_that_is_dropped(oracles, element, data, sign):
    """Up for as many of the random numbers as it should: those from a threshold on."""
    first = int(torch.tensor(element.smallest / 4096).view(torch.int32))
    last = int(torch.tensor(element.largest).view(torch.int32)) - 1
    value = torch.tensor(data.draw(st.integers(first, last)), dtype=torch.int32)
    value = value.view(torch.float32).item()
    magnitudes = oracles(element.name).magnitudes
    below = max(code for code, magnitude in enumerate(magnitudes) if magnitude <= value)
    step = magnitudes[below + 1] - magnitudes[below]
    ulp = Fraction(2) ** (math.frexp(value)[1] - 24)
    numbers = min(int(step / ulp), 1 << BITS)  # random numbers that are told apart
    up = math.floor((Fraction(value) - magnitudes[below]) / step * numbers)
    highest = (1 << BITS) - numbers  # bits that don't count
    for extra in (0, highest):
        random = torch.tensor([0, numbers - up - 1, min(numbers - up, numbers - 1), numbers - 1])
        codes = encode(sign * value, (random + extra).to(torch.int32), element)
        expected = torch.tensor([up == numbers, 0, up > 0, up > 0]) + below
        if sign < 0:
            expected |= 1 << (element.bits - 1)
        assert codes.tolist() == expected.tolist()


@pytest.mark.parametrize("element", KINDS, ids=str)
def test_what_can_be_represented_stays(element):
    codes = torch.arange(element.largest_code + 1, dtype=torch.int32)
    shape = element.exponent_bits, element.mantissa_bits, element.largest_code
    patterns = bits.decode_bits(codes, *shape)
    for random in (0, 1, (1 << BITS) - 1):
        noise = torch.full_like(codes, random)
        assert torch.equal(bits.encode_stochastic(patterns, noise, *shape), codes)


@pytest.mark.parametrize("element", KINDS, ids=str)
def test_the_mean_of_many_roundings_is_the_value(element):
    """Of every element, every row, every column and the whole, within five standard deviations."""
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    x[:, 7] *= 0.001  # where elements are subnormal
    fmt, count = KINDS[element]((32, 32), element), 300
    total = torch.zeros(32, 64, dtype=torch.float64)
    for ordinal in range(count):
        total += dequantize(quantize(x, fmt, rounding=Stochastic(9, 1, ordinal)), torch.float64)
    off = total / count - x.double()
    scale = quantize(x, fmt).scale.double().repeat_interleave(32, 0).repeat_interleave(32, 1)
    exponent = torch.frexp(x.double().abs())[1] - 1
    step = torch.exp2(exponent.double() - element.mantissa_bits).clamp(min=0)
    step = torch.maximum(step, element.smallest * scale)
    variance = step**2 / 4 / count  # at most
    for dims in ([], [0], [1], [0, 1]):
        parts, bound = (off, variance) if not dims else (off.sum(dims), variance.sum(dims))
        assert (parts.abs() <= 5 * bound.sqrt()).all()


@pytest.mark.parametrize("element", KINDS, ids=str)
def test_elements_are_neighbours_and_scales_those_of_rounding_to_nearest(element):
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    fmt = KINDS[element]((32, 32), element)
    near, noisy = quantize(x, fmt), quantize(x, fmt, rounding=Stochastic(3))
    assert torch.equal(near.scale_codes, noisy.scale_codes)
    scale = noisy.scale.float().repeat_interleave(32, 0).repeat_interleave(32, 1)
    step = torch.maximum(x.abs() * 2.0**-element.mantissa_bits, element.smallest * scale)
    off = (dequantize(noisy) - x).abs()
    assert (off < step).all()
    assert (off > step / 2).any()


@pytest.mark.parametrize("element", KINDS, ids=str)
def test_special_values_are_those_of_rounding_to_nearest(element):
    x = torch.zeros(6, 32)
    x[0, 3], x[1, 0], x[1, 1] = torch.nan, torch.inf, -torch.inf
    x[2, ::2] = -0.0
    x[3, :] = 2.0**-127
    x[4, :2] = torch.tensor([element.largest, -element.largest])
    fmt = KINDS[element]((1, 32), element)
    near, noisy = quantize(x, fmt), quantize(x, fmt, rounding=Stochastic(3))
    assert torch.equal(near.codes, noisy.codes)
    assert torch.equal(near.scale_codes, noisy.scale_codes)


def test_inputs_of_equal_value_give_equal_bytes_whatever_their_dtype():
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    expected = quantize(x, MXFP8(), rounding=Stochastic(3)).codes
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(quantize(x.to(dtype), MXFP8(), rounding=Stochastic(3)).codes, expected)


def test_matrices_of_a_stack_and_its_parts_get_numbers_of_their_own():
    x = torch.full((2, 3, 64), 1.03)
    q = quantize(x, MXFP8((3, 32)), rounding=Stochastic(3))
    flat = quantize(x.view(6, 64), MXFP8((3, 32)), rounding=Stochastic(3))
    assert torch.equal(q.codes.view(6, 64), flat.codes)
    assert not torch.equal(q.codes[0], q.codes[1])
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(quantize(strided, MXFP8((3, 32)), rounding=Stochastic(3)).codes, q.codes)


def test_strides_of_a_stack_of_stacks_do_not_move_places():
    x = torch.full((2, 3, 5, 32), 1.03)
    q = quantize(x, MXFP8(), rounding=Stochastic(3))
    strided = x.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3)
    assert torch.equal(quantize(strided, MXFP8(), rounding=Stochastic(3)).codes, q.codes)
    assert len(q.codes.view(-1, 32).unique(dim=0)) == 30  # every row is another
