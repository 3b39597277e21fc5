"""The literal table of what is special, for all formats, against code and rational arithmetic."""

import itertools
import math

import pytest
import torch

from sshsdp_mxfp import E2M1, E2M3, E3M2, E4M3, E5M2, MXFP4, MXFP6, MXFP8, dequantize, quantize

INF, NAN = math.inf, math.nan
KINDS = {"e4m3": MXFP8, "e5m2": MXFP8, "e2m3": MXFP6, "e3m2": MXFP6, "e2m1": MXFP4}
ELEMENTS = {"e4m3": E4M3, "e5m2": E5M2, "e2m3": E2M3, "e3m2": E3M2, "e2m1": E2M1}
RULES = ["rceil", "floor", "ceil", "even"]
FLOAT_MAX = torch.finfo(torch.float32).max
# Values of a block; per element format the code of its scale and its elements; the rules it holds
# for. Where libraries disagree this is what we do.
TABLE = {
    "zeros keep their signs": (
        [0.0, -0.0],
        {"e4m3": (0, "00 80"), "e5m2": (0, "00 80"), "e2m3": (0, "00 20"), "e3m2": (0, "00 20"),
         "e2m1": (0, "00 08")},
        RULES,
    ),
    "the smallest scale multiplies by exactly 2^127": (
        [2.0**-126, 2.0**-127, -(2.0**-128), 2.0**-149],
        {"e4m3": (0, "40 38 b0 00"), "e5m2": (0, "40 3c b8 00"), "e2m3": (0, "10 08 24 00"),
         "e3m2": (0, "10 0c 28 00"), "e2m1": (0, "04 02 09 00")},
        RULES,
    ),
    "the smallest float vanishes": (
        [2.0**-149, -(2.0**-149)],
        {"e4m3": (0, "00 80"), "e5m2": (0, "00 80"), "e2m3": (0, "00 20"), "e3m2": (0, "00 20"),
         "e2m1": (0, "00 08")},
        RULES,
    ),
    "an infinity saturates and its neighbours vanish": (
        [INF, -INF, 1.0, -1.0],
        {"e4m3": (254, "7e fe 00 80"), "e5m2": (254, "7b fb 00 80"), "e2m3": (254, "1f 3f 00 20"),
         "e3m2": (254, "1f 3f 00 20"), "e2m1": (254, "07 0f 00 08")},
        RULES,
    ),
    "next to an infinity what is large enough stays": (
        [INF, FLOAT_MAX, 2.0**127],
        {"e4m3": (254, "7e 40 38"), "e5m2": (254, "7b 40 3c"), "e2m3": (254, "1f 10 08"),
         "e3m2": (254, "1f 10 0c"), "e2m1": (254, "07 04 02")},
        RULES,
    ),
    "a NaN takes its whole block along": (
        [NAN, 1.0, -0.0],
        {"e4m3": (255, "7f 7f 7f"), "e5m2": (255, "7f 7f 7f"), "e2m3": (255, "1f 1f 1f"),
         "e3m2": (255, "1f 1f 1f"), "e2m1": (255, "07 07 07")},
        RULES,
    ),
    "a NaN beats an infinity, and has no sign": (
        [INF, -NAN],
        {"e4m3": (255, "7f 7f"), "e5m2": (255, "7f 7f"), "e2m3": (255, "1f 1f"),
         "e3m2": (255, "1f 1f"), "e2m1": (255, "07 07")},
        RULES,
    ),
    "the largest float, rounded up": (
        [FLOAT_MAX, 1.0],
        {"e4m3": (247, "78 00"), "e5m2": (240, "78 00"), "e2m3": (253, "18 00"),
         "e3m2": (251, "1c 00"), "e2m1": (253, "06 00")},
        ["rceil", "ceil", "even"],
    ),
    "the largest float, cut": (
        [FLOAT_MAX, 1.0],
        {"e4m3": (246, "7e 00"), "e5m2": (239, "7b 00"), "e2m3": (252, "1f 00"),
         "e3m2": (250, "1f 00"), "e2m1": (252, "07 00")},
        ["floor"],
    ),
}  # fmt: skip
ROWS = [
    (name, element, rule, dtype)
    for name, (_, expected, rules) in TABLE.items()
    for element, rule, dtype in itertools.product(expected, rules, [torch.float32, torch.float64])
]


def unpacked(q):
    if q.format.element.per_byte == 1:
        return q.codes.flatten()
    return torch.stack([q.codes & 15, q.codes >> 4], -1).flatten()


@pytest.mark.parametrize(("name", "element", "rule", "dtype"), ROWS, ids=str)
def test_row(oracles, name, element, rule, dtype):
    values, expected, _ = TABLE[name]
    code, text = expected[element]
    elements = [int(byte, 16) for byte in text.split()]
    x = torch.zeros(32, 32, dtype=dtype)
    x[3, 4 : 4 + len(values)] = torch.tensor(values, dtype=dtype)
    q = quantize(x, KINDS[element]((32, 32), ELEMENTS[element], rule))
    oracle = oracles(element, rule)
    assert oracle.block(values) == (code, elements)
    assert q.scale_codes.tolist() == [[code]]
    codes = unpacked(q)
    assert codes[100 : 100 + len(values)].tolist() == elements
    rest = torch.cat([codes[:100], codes[100 + len(values) :]])
    assert rest.unique().tolist() == [oracle.nan if code == 255 else 0]
    if code == 255:
        assert dequantize(q).isnan().all()


@pytest.mark.parametrize("element", KINDS)
@pytest.mark.parametrize("rule", RULES)
def test_float64_beyond_the_largest_value_saturates(oracles, element, rule):
    values = [1e300, -1e300, ELEMENTS[element].largest * 2.0**127, 1.0]
    x = torch.tensor([values], dtype=torch.float64)
    q = quantize(x, KINDS[element]((1, 4), ELEMENTS[element], rule))
    assert oracles(element, rule).block(values) == (254, unpacked(q).tolist())
    assert q.scale_codes.item() == 254
