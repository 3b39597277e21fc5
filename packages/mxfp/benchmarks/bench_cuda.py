"""Throughput on a GPU, beside a copy that moves the same bytes; needs one, else all is skipped.

Times are those of the device, each with a cold L2 cache; the extra information of each has them in
microseconds, per tensor, and as a fraction of the copy's bandwidth.
"""

from collections.abc import Callable
from statistics import median

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from sshsdp_mxfp import (
    MXFP4,
    MXFP8,
    Format,
    MXTensor,
    PackedLayout,
    QuantizeBatch,
    QuantizeJob,
    ScaleBatch,
    ScaleSpan,
    Stochastic,
    SwizzledLayout,
    dequantize,
)
from sshsdp_mxfp.layouts import MatrixLayout

pytestmark = pytest.mark.gpu
SIDE, TENSORS = 8192, 64


def microseconds(run: Callable[[], object], repeats: int = 20) -> float:
    """Median on the device, after three runs that don't count."""
    flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(repeats + 3):
        flush.zero_()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(1000 * start.elapsed_time(stop))
    return median(times[3:])


def of_a_copy(run: Callable[[], object], moved: int) -> dict[str, float]:
    """What is recorded of something that reads and writes so many bytes together."""
    source, target = torch.empty(2, moved // 2, dtype=torch.uint8, device="cuda").unbind()
    time = microseconds(run)
    return {
        "microseconds": time,
        "GB/s": moved / time / 1000,
        "fraction of a copy": microseconds(lambda: target.copy_(source)) / time,
    }


def synchronized(run: Callable[[], object]) -> Callable[[], None]:
    def both() -> None:
        run()
        torch.cuda.synchronize()

    return both


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("fmt", "second", "rounding"),
    [
        (MXFP8(), None, None),
        (MXFP8((32, 1)), None, None),
        (MXFP8((32, 32)), None, None),
        (MXFP8(), MXFP8((32, 1)), None),
        (MXFP8(), None, Stochastic(0)),
        (MXFP4(), None, None),
    ],
    ids=["1x32", "32x1", "32x32", "both", "stochastic", "FP4"],
)
def test_quantize(
    benchmark: BenchmarkFixture,
    dtype: torch.dtype,
    fmt: Format,
    second: Format | None,
    rounding: Stochastic | None,
) -> None:
    x = torch.randn(SIDE, SIDE, device="cuda").to(dtype)
    out = MXTensor.empty(x.shape, fmt, device="cuda")
    other = None if second is None else MXTensor.empty(x.shape, second, device="cuda")
    job = QuantizeJob(x, out, other, rounding)
    batch = QuantizeBatch([job])
    moved = x.nbytes + sum(each.nbytes for each in job.outs)
    benchmark.extra_info.update(of_a_copy(batch.run, moved))
    benchmark(synchronized(batch.run))


def test_many_small_weights(benchmark: BenchmarkFixture) -> None:
    jobs = [
        QuantizeJob(x, MXTensor.empty(x.shape, MXFP8((32, 32)), device="cuda"))
        for x in (torch.randn(512, 1024 + 32 * k, device="cuda") for k in range(TENSORS))
    ]
    batch = QuantizeBatch(jobs)
    moved = sum(job.x.nbytes + job.out.nbytes for job in jobs)
    benchmark.extra_info.update(of_a_copy(batch.run, moved))
    benchmark(synchronized(batch.run))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dequantize(benchmark: BenchmarkFixture, dtype: torch.dtype) -> None:
    q = MXTensor.empty((SIDE, SIDE), MXFP8((32, 32)), device="cuda")
    q.codes.zero_()
    q.scale_codes.fill_(127)
    out = torch.empty(SIDE, SIDE, dtype=dtype, device="cuda")

    def run() -> None:
        dequantize(q, dtype, out=out)

    benchmark.extra_info.update(of_a_copy(run, q.nbytes + out.nbytes))
    benchmark(synchronized(run))


@pytest.mark.parametrize("layout", [PackedLayout, SwizzledLayout])
def test_relayout(benchmark: BenchmarkFixture, layout: type[MatrixLayout]) -> None:
    plan = layout(4096, 128)
    spans = []
    for _ in range(TENSORS):
        grid = torch.zeros(128, 128, dtype=torch.uint8, device="cuda")
        out = torch.empty(plan.cells, dtype=torch.uint8, device="cuda")
        spans.append(ScaleSpan(grid, plan, 0, plan.cells, out, 32))
    batch = ScaleBatch(spans)
    benchmark.extra_info["microseconds per tensor"] = microseconds(batch.run) / TENSORS
    benchmark(synchronized(batch.run))
