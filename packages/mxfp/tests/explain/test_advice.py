"""Advice follows from the numbers."""

import math

import pytest
import torch

from sshsdp_mxfp.explain import advise, measure, parse_formats, summarize
from sshsdp_mxfp.explain.names import DEFAULT
from sshsdp_mxfp.explain.random import draw

ALL = parse_formats(DEFAULT)
SHAPE = (256, 256)


def advice(x, formats=ALL):
    summary = summarize(x)
    return advise(summary, [measure(x, fmt, summary) for fmt in formats])


def test_one_grid_for_an_ordinary_weight():
    text = advice(draw("normal", SHAPE, 0))
    assert text.startswith("Take e4m3:32x32:rceil: 31.5 dB with 8.01 stored bits")
    assert text.endswith("the same bytes serve the transposed tensor.")


def test_blocks_along_rows_where_rows_differ_in_scale():
    text = advice(draw("rows", SHAPE, 0))
    assert text.startswith("Take e4m3:1x32:rceil")
    assert "e4m3:32x32:rceil turns" in text
    assert "needs blocks of the other direction too" in text


def test_blocks_along_columns_where_columns_do():
    assert advice(draw("rows", SHAPE, 0).t()).startswith("Take e4m3:32x1:rceil")


def test_the_narrowest_format_that_is_exact():
    text = advice(torch.ones(SHAPE))
    assert text.startswith("Take e2m1:32x32:rceil: no loss with 4.01 stored bits per element, as ")


def test_one_format_is_the_best_of_one():
    text = advice(draw("normal", SHAPE, 0), parse_formats("e3m2"))
    assert text.startswith("Take e3m2:1x32:rceil: 25.5 dB with 8.25 stored bits per element, the")


@pytest.mark.parametrize(
    ("value", "start"),
    [(math.nan, "1 NaN elements spoil their blocks"), (-math.inf, "1 infinite elements spoil")],
)
def test_what_is_not_finite_comes_first(value, start):
    x = draw("normal", SHAPE, 0)
    x[3, 5] = value
    text = advice(x)
    assert text.startswith(start)
    assert ". Take e4m3" in text


def test_zeros_need_no_choice():
    assert advice(torch.zeros(SHAPE)) == "Nothing but zeros, which every format keeps."
    x = torch.zeros(SHAPE)
    x[0, 0] = math.nan
    assert advice(x).endswith("look there first. Nothing else but zeros, which every format keeps.")
