"""Batches on CPUs do what one call per tensor does."""

import pytest
import torch

from sshsdp_mxfp import (
    E5M2,
    MXFP4,
    MXFP8,
    MXTensor,
    PackedLayout,
    QuantizeBatch,
    QuantizeJob,
    ScaleBatch,
    ScaleSpan,
    ScaleWrite,
    Stochastic,
    SwizzledLayout,
    pack_scales,
    pack_span,
    quantize,
    quantize_both,
)

X = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))


def same(a, b):
    return torch.equal(a.codes, b.codes) and torch.equal(a.scale_codes, b.scale_codes)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("fmt", [MXFP8(), MXFP8((32, 1), E5M2), MXFP8((32, 32))], ids=str)
def test_both_directions(fmt, transposed):
    rounding = Stochastic(3)
    first, second = quantize_both(X, fmt, transposed=transposed, rounding=rounding)
    assert second.format.block == fmt.block[::-1]
    assert second.data.mT.is_contiguous() == transposed
    for q in (first, second):
        assert same(q, quantize(X, q.format, rounding=rounding))


def test_jobs_of_several_shapes_and_formats():
    shapes = [(64, 96), (3, 32, 64), (0, 32)]
    jobs = [
        QuantizeJob(torch.randn(shape), MXTensor.empty(shape, fmt), other)
        for shape, fmt, other in zip(
            shapes,
            [MXFP8(), MXFP4(), MXFP8()],
            [MXTensor.empty((64, 96), MXFP8((32, 32))), None, None],
            strict=True,
        )
    ]
    batch = QuantizeBatch(jobs)
    assert batch.launches == 0
    batch.run()
    for job in jobs:
        for out in job.outs:
            assert same(out, quantize(job.x, out.format))


def test_a_batch_reads_what_is_there_when_it_runs():
    x = X.clone()
    job = QuantizeJob(
        x, MXTensor.empty(x.shape, MXFP8()), rounding=Stochastic(1, ordinal=2**32 - 1)
    )
    batch = QuantizeBatch([job])
    x.mul_(3)
    batch.run(step=2)
    assert same(job.out, quantize(x, MXFP8(), rounding=Stochastic(1, ordinal=1)))


def test_float64_is_for_cpus():
    job = QuantizeJob(X.double(), MXTensor.empty(X.shape, MXFP8()))
    QuantizeBatch([job]).run()
    assert same(job.out, quantize(X, MXFP8()))


def test_scales_of_rectangles_and_spans():
    layouts = PackedLayout(64, 3), SwizzledLayout(64, 3)
    grid = quantize(X, MXFP8()).scale_codes
    operand = layouts[0].allocate()
    out = torch.empty(100, dtype=torch.uint8)
    halves = [ScaleWrite(grid[k : k + 32], layouts[0], operand, row=k) for k in (0, 32)]
    batch = ScaleBatch([*halves, ScaleSpan(grid, layouts[1], 7, 107, out)])
    assert batch.launches == 0
    batch.run()
    assert torch.equal(operand, pack_scales(grid, layouts[0]))
    assert torch.equal(out, pack_span(grid, layouts[1], 7, 107))


def test_jobs_are_checked_when_a_batch_is_made():
    with pytest.raises(ValueError, match="expected both results with the same elements and rule"):
        QuantizeBatch([
            QuantizeJob(X, MXTensor.empty(X.shape, MXFP8()), MXTensor.empty(X.shape, MXFP4()))
        ])  # fmt: skip
    with pytest.raises(ValueError, match=r"expected a tensor of .*, got torch\.int64"):
        QuantizeBatch([QuantizeJob(X.long(), MXTensor.empty(X.shape, MXFP8()))])
