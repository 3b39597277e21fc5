"""What ptxas makes of the kernels for sm_90a and sm_100a: registers, spills, width of accesses.

Tiles of quantization have 32x128 elements for 128 threads: a thread reads 32 floats in 8 accesses
of 128 bits, and writes 32 codes in 2.
"""

from importlib.util import find_spec

import pytest
import torch

from sshsdp_mxfp import (
    E5M2,
    MXFP4,
    MXFP6,
    MXFP8,
    MXTensor,
    PackedLayout,
    PlainLayout,
    QuantizeJob,
    ScaleSpan,
    ScaleWrite,
    Stochastic,
    SwizzledLayout,
)
from sshsdp_mxfp.kernels import dequantize, quantize, relayout
from sshsdp_mxfp.layouts.write import CheckedWrite

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
N = 4096
FLOAT, BFLOAT = torch.float32, torch.bfloat16
CONVERSION = {"e4m3": "cvt.rn.satfinite.e4m3x2.f32", "e5m2": "cvt.rn.satfinite.e5m2x2.f32"}
# Name: dtype, format, block and order of a second result, stochastic rounding, many matrices;
# registers at most, 128-bit loads and stores; architectures.
QUANTIZATION = {
    "rows": (FLOAT, MXFP8(), None, "row", False, False, 64, 8, 2, (90, 100)),
    "columns": (BFLOAT, MXFP8((32, 1)), None, "row", False, False, 80, 4, 2, (90,)),
    "E5M2": (BFLOAT, MXFP8((32, 32), E5M2), None, "row", False, True, 80, 4, 2, (100,)),
    "both": (FLOAT, MXFP8(), (32, 1), "row", False, True, 128, 8, 4, (90,)),
    "both, one transposed": (FLOAT, MXFP8(), (32, 1), "column", False, True, 128, 8, 4, (90, 100)),
    "32x32 in both orders": (
        FLOAT, MXFP8((32, 32)), (32, 32), "column", False, True, 96, 8, 4, (90, 100),
    ),
    "FP4": (BFLOAT, MXFP4(), None, "row", False, False, 64, 4, 1, (100,)),
    "FP6": (BFLOAT, MXFP6((32, 32)), None, "row", False, False, 64, 4, 2, (90,)),
    "stochastic": (BFLOAT, MXFP8(), None, "row", True, False, 80, 4, 2, (90,)),
}  # fmt: skip
CASES = [
    pytest.param(*case[:-1], architecture, id=f"{name} on sm_{architecture}a")
    for name, case in QUANTIZATION.items()
    for architecture in case[-1]
]


def check(code, architecture, registers, loads, stores, narrow=0):
    """Nothing spills; `narrow` accesses to scales may be less than 128 bits wide."""
    assert f".target sm_{architecture}a" in code.ptx
    assert ".ftz" not in code.ptx  # multipliers of the largest scales are subnormal
    assert (code.stack, code.local, code.count("LDL"), code.count("STL")) == (0, 0, 0, 0)
    assert code.registers <= registers
    assert code.accesses["LDG.E.128"] == loads
    assert code.accesses["STG.E.128"] == stores
    assert code.count("STG") - stores <= narrow


@pytest.mark.parametrize(
    ("dtype", "fmt", "second", "order", "stochastic", "many", "registers", "loads", "stores",
     "architecture"),
    CASES,
)  # fmt: skip
def test_quantization(
    compiled, dtype, fmt, second, order, stochastic, many, registers, loads, stores, architecture
):
    other = None
    if second is not None:
        kind = type(fmt)
        block = second[::-1] if order == "column" else second
        other = MXTensor.empty((N, N), kind(block, fmt.element), device="cuda")
        other = other.mT if order == "column" else other
    x, out = (
        torch.empty(N, N, dtype=dtype, device="cuda"),
        MXTensor.empty((N, N), fmt, device="cuda"),
    )
    job = QuantizeJob(x, out, other, Stochastic(1) if stochastic else None)
    code = compiled(quantize.prepare([job], direct=not many), architecture)
    check(code, architecture, registers, loads, stores, narrow=1 + (other is not None))
    conversion = CONVERSION.get(fmt.element.name, "satfinite")
    assert (conversion in code.ptx) == (fmt.element.name in CONVERSION and not stochastic)


@pytest.mark.parametrize(
    ("fmt", "dtype", "registers", "loads", "stores", "architecture"),
    [
        (MXFP8((32, 32)), FLOAT, 64, 2, 8, 90),
        (MXFP8((1, 32)), BFLOAT, 64, 2, 4, 100),
        (MXFP4((1, 32)), BFLOAT, 64, 1, 4, 90),
    ],
    ids=str,
)
def test_dequantization(compiled, fmt, dtype, registers, loads, stores, architecture):
    q = MXTensor.empty((N, N), fmt, device="cuda")
    out = torch.empty(N, N, dtype=dtype, device="cuda")
    code = compiled(dequantize.prepare(q, out), architecture)
    check(code, architecture, registers, loads, stores)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("kind", [PackedLayout, SwizzledLayout])
def test_spans(compiled, kind, direct):
    layout = kind(N, N // 32)
    grid = torch.empty(N // 32, N // 32, dtype=torch.uint8, device="cuda")
    out = torch.empty(layout.cells, dtype=torch.uint8, device="cuda")
    parts = ScaleSpan(grid, layout, 0, layout.cells, out, 32).parts()
    code = compiled(relayout.prepare_spans(parts, direct=direct), 90 if direct else 100)
    check(code, 90 if direct else 100, 96, 0, 1)


@pytest.mark.parametrize("direct", [False, True])
def test_rectangles_and_reading(compiled, direct):
    layout = PackedLayout(N, N // 32)
    operand = layout.allocate("cuda")
    grid = torch.empty(4, N // 32, dtype=torch.uint8, device="cuda")
    write = CheckedWrite(ScaleWrite(grid, layout, operand, row=128, band=32))
    code = compiled(relayout.prepare_writes([write], direct=direct), 90)
    check(code, 90, 64, 1 if direct else 0, 0, narrow=64)
    if direct:
        plain = PlainLayout(N, N // 32)
        cells = torch.empty(plain.cells, dtype=torch.uint8, device="cuda")
        target = torch.empty(N, N // 32, dtype=torch.uint8, device="cuda")
        code = compiled([relayout.prepare_read(cells, plain, target, 1)], 100)
        check(code, 100, 64, 0, 1)
