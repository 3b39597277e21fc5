"""Throughput on the CPU; the limit to chase is 8 times a memcpy of the same bytes."""

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from sshsdp_mxfp import MXFP8, MXTensor, dequantize, quantize

SHAPE = (2048, 2048)


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("block", [(32, 32), (1, 32)], ids=["32x32", "1x32"])
def test_quantize(
    benchmark: BenchmarkFixture,
    weight: torch.Tensor,
    block: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    x, out = weight.to(dtype), MXTensor.empty(SHAPE, MXFP8(block))
    benchmark(quantize, x, MXFP8(block), out=out)


def test_quantize_transposed(benchmark: BenchmarkFixture, weight: torch.Tensor) -> None:
    out = MXTensor.empty(SHAPE, MXFP8((32, 32)))
    benchmark(quantize, weight.t(), MXFP8((32, 32)), out=out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dequantize(benchmark: BenchmarkFixture, weight: torch.Tensor, dtype: torch.dtype) -> None:
    q = quantize(weight, MXFP8((32, 32)))
    assert benchmark(dequantize, q, dtype).shape == SHAPE


def test_memcpy_of_the_same_bytes(benchmark: BenchmarkFixture, weight: torch.Tensor) -> None:
    """What quantize reads and writes for float32, 5 bytes per element, as one plain copy."""
    source = torch.ones(weight.numel() * 5 // 2, dtype=torch.uint8)
    benchmark(torch.empty_like(source).copy_, source)
