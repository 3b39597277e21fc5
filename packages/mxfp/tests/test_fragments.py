"""A tensor quantized in fragments has the bytes of the tensor quantized as a whole."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_mxfp import (
    E3M2,
    MXFP4,
    MXFP6,
    MXFP8,
    Fragment,
    MXTensor,
    QuantizedFragment,
    Stochastic,
    cast_fragment,
    geometry,
    partial_maxima,
    quantize,
    quantize_fragment,
)

FORMATS = {
    "32x32": MXFP8((32, 32), ragged="partial"),
    "1x32": MXFP8((1, 32), ragged="partial"),
    "32x1 floor": MXFP8((32, 1), rule="floor", ragged="partial"),
    "3x2 of e3m2": MXFP6((3, 2), E3M2, ragged="partial"),
    "2x4 of e2m1": MXFP4((2, 4), ragged="partial"),
    "4x1 of e2m1": MXFP4((4, 1), ragged="partial"),
}


def random(shape, dtype):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return (x * torch.exp2(torch.arange(shape[-1]) % 17)).to(dtype)


def cut(numel, points, step):
    places = sorted({0, numel, *(point % (numel + 1) // step * step for point in points)})
    return [*itertools.pairwise(places), (places[1], places[1])]


def quantize_in_fragments(x, fmt, ranges, rounding=None):
    """All fragments, with a max over a grid that everybody sees, as a whole tensor."""
    fragments = [Fragment(tuple(x.shape), start, stop, fmt) for start, stop in ranges]
    flat = [x.reshape(-1)[f.start : f.stop].clone() for f in fragments]
    maxima = [partial_maxima(part, f) for part, f in zip(flat, fragments, strict=True)]
    grid = fmt.grid_shape(x.shape)
    common = torch.zeros(math.prod(grid[:-1]), grid[-1], dtype=maxima[0].dtype)
    for fragment, mine in zip(fragments, maxima, strict=True):
        for band in fragment.cut_bands:
            row = common[band]
            torch.maximum(row, mine[band - fragment.bands.start], out=row)

    def combine(mine, fragment):
        for band in fragment.cut_bands:
            mine[band - fragment.bands.start] = common[band]

    out = MXTensor.empty(x.shape, fmt)
    codes = torch.full((len(common), grid[-1]), 77, dtype=torch.uint8)
    for part, fragment in zip(flat, fragments, strict=True):
        result = quantize_fragment(part, fragment, combine, rounding=rounding)
        share = fmt.element.per_byte
        place = slice(fragment.start // share, fragment.stop // share)
        out.codes.view(-1)[place] = result.data.view(torch.uint8)
        codes[fragment.bands.start : fragment.bands.stop] = result.scale.view(torch.uint8)
    out.scale_codes.copy_(codes.view(grid))
    return out


def assert_equal(one, two):
    assert torch.equal(one.codes, two.codes)
    assert torch.equal(one.scale_codes, two.scale_codes)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
@given(
    shape=st.one_of(
        st.tuples(st.integers(1, 70), st.integers(1, 70)),
        st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 9)),
    ),
    points=st.lists(st.integers(0, 10_000), max_size=5),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    chunk=st.sampled_from([50, 1 << 18]),
    stochastic=st.booleans(),
)
def test_any_cuts_of_any_shape(fmt, shape, points, dtype, chunk, stochastic):
    share = fmt.element.per_byte
    shape = (*shape[:-1], shape[-1] * share)
    x = random(shape, dtype)
    rounding = Stochastic(1, 2, 3) if stochastic else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(geometry, "CHUNK", chunk)
        result = quantize_in_fragments(x, fmt, cut(x.numel(), points, share), rounding)
    assert_equal(result, quantize(x, fmt, rounding=rounding))


def test_single_elements():
    fmt = FORMATS["3x2 of e3m2"]
    x = random((5, 5), torch.float32)
    result = quantize_in_fragments(x, fmt, [(k, k + 1) for k in range(25)])
    assert_equal(result, quantize(x, fmt))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.nan])
def test_what_is_not_finite_reaches_the_other_holders_of_a_block(bad):
    x = torch.ones(64, 64)
    x[0, 0] = bad
    ranges = [(0, 70), (70, 2000), (2000, 4096)]
    result = quantize_in_fragments(x, FORMATS["32x32"], ranges)
    assert_equal(result, quantize(x, FORMATS["32x32"]))


def test_a_vector():
    x = random((100,), torch.float32)
    assert_equal(
        quantize_in_fragments(x, FORMATS["1x32"], [(0, 33), (33, 90), (90, 100)]),
        quantize(x, FORMATS["1x32"]),
    )


@pytest.mark.parametrize(
    ("start", "stop", "bands", "cut_bands"),
    [
        (0, 2048, range(1), ()),
        (0, 2049, range(2), (1,)),
        (1, 2048, range(1), (0,)),
        (2047, 4097, range(3), (0, 2)),
        (4096, 70 * 64, range(2, 3), ()),  # the ragged last band, as a whole
        (70 * 64, 102 * 64, range(3, 4), ()),  # the second matrix starts a new band
        (70 * 64 - 1, 70 * 64 + 1, range(2, 4), (2, 3)),
        (100, 100, range(0), ()),
    ],
)
def test_bands_and_which_of_them_are_cut(start, stop, bands, cut_bands):
    fragment = Fragment((2, 70, 64), start, stop, FORMATS["32x32"])
    assert fragment.bands == bands
    assert fragment.cut_bands == cut_bands
    assert fragment.grid_shape == (len(bands), 2)


def test_everybody_combines_once_also_with_nothing_in_hand():
    seen = []
    empty = Fragment((64, 64), 5, 5, FORMATS["32x32"])
    quantize_fragment(torch.empty(0), empty, lambda maxima, f: seen.append((maxima.shape, f)))
    assert seen == [((0, 2), empty)]


def test_writes_into_views_of_flat_buffers():
    fmt, x = FORMATS["32x32"], random((64, 96), torch.float32)
    data, codes = torch.zeros(7000, dtype=torch.uint8), torch.zeros(10, 3, dtype=torch.uint8)
    fragment = Fragment((64, 96), 0, 64 * 96, fmt)
    out = QuantizedFragment(
        data[3 : 3 + x.numel()].view(torch.float8_e4m3fn),
        codes[4:6].view(torch.float8_e8m0fnu),
        fragment,
    )
    flat = x.reshape(-1)
    assert cast_fragment(flat, fragment, partial_maxima(flat, fragment), out=out) is out
    whole = quantize(x, fmt)
    assert torch.equal(data[3 : 3 + x.numel()].view(64, 96), whole.codes)
    assert torch.equal(codes[4:6], whole.scale_codes)
    assert not data[:3].any()
    assert not data[3 + x.numel() :].any()
    assert not codes[:4].any()


def test_what_does_not_suit_a_fragment_is_refused():
    fmt = FORMATS["32x32"]
    with pytest.raises(ValueError, match=r"inside the 4096 elements of \[64, 64\], got 5:4097"):
        Fragment((64, 64), 5, 4097, fmt)
    with pytest.raises(ValueError, match=r"multiples of 2 elements, for e2m1; got 1:4 of"):
        Fragment((4, 4), 1, 4, MXFP4((2, 4)))
    with pytest.raises(ValueError, match=r"multiples of 2 elements, .* of \[4, 5\]"):
        Fragment((4, 5), 0, 4, MXFP4((2, 4), ragged="partial"))
    with pytest.raises(ValueError, match="multiples of the block 32x32"):
        Fragment((63, 64), 0, 4, MXFP8((32, 32)))
    fragment = Fragment((64, 64), 0, 100, fmt)
    with pytest.raises(ValueError, match=r"a flat tensor of 100 elements for 0:100 .*got .*\[99\]"):
        partial_maxima(torch.zeros(99), fragment)
    x = torch.zeros(100)
    maxima = partial_maxima(x, fragment)
    with pytest.raises(ValueError, match=r"expected maxima of torch.int32 .*got torch.float32"):
        cast_fragment(x, fragment, maxima.float())
    other = QuantizedFragment.empty(Fragment((64, 64), 0, 101, fmt))
    with pytest.raises(ValueError, match=r"expected out for Fragment.* got one for Fragment"):
        cast_fragment(x, fragment, maxima, out=other)
    with pytest.raises(ValueError, match="expected data and scales of"):
        QuantizedFragment(other.data, other.scale, fragment)
