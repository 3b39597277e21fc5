"""Scales as a row of bars."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_mxfp.explain import histogram


@given(st.dictionaries(st.integers(0, 255), st.integers(1, 1 << 40), min_size=1))
def test_every_block_is_seen_in_a_bar_and_empty_places_are_blank(counts):
    scales = [counts.get(code, 0) for code in range(256)]
    codes, row = histogram.used(scales), histogram.bars(scales)
    inner = [code for code in counts if 0 < code < 255]
    assert (min(inner), max(inner)) == (codes[0], codes[-1]) if inner else not codes
    assert len(row) <= 32
    step = max(1, -(-len(codes) // 32))
    for place, bar in enumerate(row):
        there = any(scales[code] for code in codes[place * step : (place + 1) * step])
        assert (bar in histogram.BARS) == there


def test_the_tallest_bar_is_the_most_common():
    scales = [0] * 256
    scales[100], scales[101], scales[103], scales[0] = 1, 50, 100, 1000
    assert histogram.bars(scales) == "▂▅ █"
    assert histogram.most(scales) == 0


@pytest.mark.parametrize(("width", "length"), [(32, 32), (33, 17), (254, 32)])
def test_many_codes_share_bars(width, length):
    scales = [0] * 256
    scales[1 : 1 + width] = [1] * width
    assert len(histogram.bars(scales)) == length
