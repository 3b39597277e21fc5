"""Relayout of the scales of one 4096x4096 weight on the CPU: small beside its quantization."""

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from sshsdp_mxfp.layouts import (
    MatrixLayout,
    PackedLayout,
    PlainLayout,
    ScaleWrite,
    SwizzledLayout,
    pack_scales,
    pack_span,
    unpack_scales,
    write_scales,
)

LAYOUTS = pytest.mark.parametrize("layout", [PlainLayout, PackedLayout, SwizzledLayout])
GRID = torch.randint(0, 255, (128, 128), dtype=torch.uint8)


@LAYOUTS
def test_expand_a_grid(benchmark: BenchmarkFixture, layout: type[MatrixLayout]) -> None:
    plan = layout(4096, 128)
    benchmark(pack_scales, GRID, plan, band=32, out=plan.allocate())


@LAYOUTS
def test_an_eighth_of_it(benchmark: BenchmarkFixture, layout: type[MatrixLayout]) -> None:
    plan = layout(4096, 128)
    benchmark(pack_span, GRID, plan, 0, plan.cells // 8, band=32)


@LAYOUTS
def test_unpack(benchmark: BenchmarkFixture, layout: type[MatrixLayout]) -> None:
    plan = layout(4096, 128)
    benchmark(unpack_scales, pack_scales(GRID, plan, band=32), plan)


def test_32_heads_in_one_call(benchmark: BenchmarkFixture) -> None:
    plan = PackedLayout(4096, 128)
    operand = plan.allocate()
    heads = [
        ScaleWrite(GRID[4 * head : 4 * head + 4], plan, operand, row=128 * head, band=32)
        for head in range(32)
    ]
    benchmark(write_scales, heads)
