"""On a real GPU: the bytes of the CPU, captured graphs, and how fast it is."""

import itertools
from statistics import median

import pytest
import torch

from sshsdp_mxfp import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    MXFP4,
    MXFP6,
    MXFP8,
    MXTensor,
    NonFiniteError,
    PackedLayout,
    QuantizeBatch,
    QuantizeJob,
    ScaleBatch,
    ScaleSpan,
    ScaleWrite,
    Stochastic,
    SwizzledLayout,
    dequantize,
    pack_scales,
    quantize,
    quantize_both,
    unpack_scales,
    write_scales,
)

pytestmark = pytest.mark.gpu
KINDS = {E4M3: MXFP8, E5M2: MXFP8, E2M3: MXFP6, E3M2: MXFP6, E2M1: MXFP4}
SHAPES = [(64, 256), (33, 70), (3, 40, 129), (1, 1)]


def any_bits(shape, dtype):
    """Half of the rows are anything, NaN included, half are of similar size."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(1 << 31), 1 << 31, shape, generator=generator)
    bits[..., ::2, :] = (bits[..., ::2, :] & 0x83FFFFFF) + 0x3C000000
    return bits.to(torch.int32).view(torch.float32).to(dtype)


def same(q, wanted):
    assert torch.equal(q.scale_codes.cpu(), wanted.scale_codes)
    assert torch.equal(q.codes.cpu(), wanted.codes)


def milliseconds(run, repeats=20):
    """Median of single runs, each with a cold L2."""
    flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(repeats + 3):
        flush.zero_()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return median(times[3:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("element", KINDS, ids=str)
def test_bytes_of_the_cpu(element, dtype):
    blocks, rules = [(1, 32), (32, 1), (32, 32)], ["rceil", "floor", "ceil", "even"]
    for block, rule, shape in itertools.product(blocks, rules, SHAPES):
        fmt, x = KINDS[element](block, element, rule, "partial"), any_bits(shape, dtype)
        for rounding in (None, Stochastic((1 << 63) + 7, 3, 5)):
            same(quantize(x.cuda(), fmt, rounding=rounding), quantize(x, fmt, rounding=rounding))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("block", [(1, 32), (32, 32)], ids=str)
def test_both_directions(block, transposed):
    x = any_bits((2, 96, 160), torch.float32)
    pairs = [quantize_both(each, MXFP8(block), transposed=transposed) for each in (x.cuda(), x)]
    for q, wanted in zip(*pairs, strict=True):
        same(q, wanted)


@pytest.mark.parametrize("element", KINDS, ids=str)
def test_values_of_the_cpu(element):
    fmt = KINDS[element]((1, 32), element, ragged="partial")
    q = quantize(any_bits((64, 130), torch.float32), fmt)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        wanted, got = dequantize(q, dtype), dequantize(q.to("cuda"), dtype).cpu()
        assert torch.equal(got.nan_to_num(7.0), wanted.nan_to_num(7.0))
        assert torch.equal(got.isnan(), wanted.isnan())


def test_what_is_not_finite():
    x = torch.ones(64, 64, device="cuda")
    quantize(x, MXFP8(), require_finite=True)
    x[40, 3] = torch.inf
    with pytest.raises(NonFiniteError, match=r"in block \[40, 0\]"):
        quantize(x, MXFP8(), require_finite=True)


@pytest.mark.parametrize("kind", [PackedLayout, SwizzledLayout])
def test_scales(kind):
    layout = kind(130, 9)
    grid = torch.randint(0, 256, (5, 9), dtype=torch.uint8)
    operand = pack_scales(grid.cuda(), layout, band=32)
    wanted = pack_scales(grid, layout, band=32)
    assert torch.equal(layout.storage(operand).cpu(), layout.storage(wanted))
    assert torch.equal(
        unpack_scales(operand, layout).view(torch.uint8).cpu(),
        unpack_scales(wanted, layout).view(torch.uint8),
    )
    heads = [
        [ScaleWrite(grid[:1].to(at.device), layout, at, row=k, rows=7, band=32) for k in (3, 50)]
        for at in (operand, wanted)
    ]
    for writes in heads:
        write_scales(writes)
    assert torch.equal(layout.storage(operand).cpu(), layout.storage(wanted))


def test_batches_run_inside_of_captured_graphs_and_are_not_made_there():
    x = any_bits((64, 256), torch.float32).cuda()
    job = QuantizeJob(x, MXTensor.empty(x.shape, MXFP8(), device="cuda"))
    batch = QuantizeBatch([job])
    batch.run()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch.run()
        with pytest.raises(RuntimeError, match="prepared before a graph is captured"):
            QuantizeBatch([job])
    x.mul_(3)
    graph.replay()
    same(job.out, quantize(x.cpu(), MXFP8()))


@pytest.mark.parametrize("way", ["1x32", "32x32", "both"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bandwidth_is_70_percent_of_a_copy(record_property, dtype, way):
    x = torch.randn(8192, 8192, device="cuda").to(dtype)
    fmt = MXFP8((32, 32) if way == "32x32" else (1, 32))
    out = MXTensor.empty(x.shape, fmt, device="cuda")
    other = MXTensor.empty(x.shape, MXFP8((32, 1)), device="cuda") if way == "both" else None
    job = QuantizeJob(x, out, other)
    moved = x.nbytes + sum(each.nbytes for each in job.outs)
    source, target = torch.empty(2, moved // 2, dtype=torch.uint8, device="cuda").unbind()
    ratio = milliseconds(lambda: target.copy_(source)) / milliseconds(QuantizeBatch([job]).run)
    record_property("fraction of the bandwidth of a copy", round(ratio, 3))
    assert ratio >= 0.7


def test_relayout_takes_5_us_per_tensor(record_property):
    layout = PackedLayout(4096, 128)
    spans = [
        ScaleSpan(torch.zeros(128, 128, dtype=torch.uint8, device="cuda"), layout, 0, layout.cells,
                  torch.empty(layout.cells, dtype=torch.uint8, device="cuda"), 32)
        for _ in range(64)
    ]  # fmt: skip
    each = 1000 * milliseconds(ScaleBatch(spans).run) / len(spans)
    record_property("microseconds per tensor", round(each, 2))
    assert each <= 5
