"""Codes are handled as bits: every one survives, and nothing is rounded."""

import math
from fractions import Fraction

import pytest
import torch

from sshsdp_mxfp.layouts import codes_of_scales, scales_of_codes


def test_every_code():
    codes = torch.arange(256, dtype=torch.uint8)
    scales = scales_of_codes(codes)
    assert scales.dtype == torch.float32
    for code, scale in zip(range(255), scales.tolist(), strict=False):
        assert Fraction(scale) == Fraction(2) ** (code - 127)
    assert math.isnan(scales[255])
    assert torch.equal(codes_of_scales(scales), codes)
    assert torch.equal(scales_of_codes(codes.view(torch.float8_e8m0fnu))[:255], scales[:255])


@pytest.mark.parametrize(
    "scale",
    [0.003, 1.3, 1.9999, 3.0, 0.0, -1.0, -0.0, math.inf, 2.0**-128, 2.0**-126 * 1.5, 3.4e38],
)
def test_scales_that_are_no_power_of_two_are_refused_with_their_place(scale):
    scales = torch.ones(70, 4)
    scales[67, 2] = scale
    with pytest.raises(
        ValueError, match=r"powers of two from 2\^-127 .*got .* at \[67, 2\]; round"
    ):
        codes_of_scales(scales)


def test_dtypes():
    with pytest.raises(ValueError, match=r"expected scales of torch\.float32, got torch\.float64"):
        codes_of_scales(torch.ones(1, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"codes of torch\.uint8 .*, got torch\.float32; convert"):
        scales_of_codes(torch.ones(1))


def test_strides_of_scales():
    scales = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
    assert codes_of_scales(scales.t()).tolist() == [[127, 130], [128, 131], [129, 132]]
