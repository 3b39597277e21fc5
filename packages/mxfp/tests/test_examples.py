"""Worked examples of the format, as literal bytes."""

import math

import pytest
import torch

from sshsdp_mxfp import MXFP8, quantize

FLOAT_MAX = torch.finfo(torch.float32).max
EXAMPLES = {
    "power of two": ([1, -1, 0.5], 119, "78 f8 70"),
    "largest, negative zero": ([448, 1, -0.0], 127, "7e 38 80"),
    "just above the largest": ([449, 224, 1], 128, "76 6e 30"),
    "rounds to the next binade": ([480, -464, 3], 128, "77 f6 3c"),
    "zeros": ([0], 0, "00"),
    "ordinary": ([math.pi, -math.e, 1e-3], 120, "7d fb 20"),
    "ties": ([448, 1.0625, 1.1875, 17, 19, 2**-10, 3 * 2**-10], 127, "7e 38 3a 58 5a 00 02"),
    "smallest scale": ([2**-126, 2**-127], 0, "40 38"),
    "largest float": ([FLOAT_MAX, 1], 247, "78 00"),
    "subnormal elements": (
        [1000, 1, 0.01, 2**-7, 2**-8, -4.0001 * 2**-9],
        129,
        "78 28 01 01 00 81",
    ),
    "infinity": ([math.inf, 1], 254, "7e 00"),
    "not a number": ([math.nan, 1], 255, "7f 7f"),
}


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("rows", [1, 32])
def test_worked_example(name, rows):
    values, code, text = EXAMPLES[name]
    x = torch.zeros(rows, 32)
    x[0, : len(values)] = torch.tensor(values)
    result = quantize(x, MXFP8((rows, 32)))
    rest = "7f" if code == 255 else "00"
    expected = text.split() + [rest] * (32 * rows - len(values))
    assert result.scale.view(torch.uint8).tolist() == [[code]]
    assert [f"{byte:02x}" for byte in result.data.view(torch.uint8).flatten()] == expected


def test_the_oracle_agrees_with_the_worked_examples(oracle):
    for values, code, text in EXAMPLES.values():
        block = torch.tensor(values, dtype=torch.float32).tolist()
        assert oracle.block(block) == (code, [int(byte, 16) for byte in text.split()])
