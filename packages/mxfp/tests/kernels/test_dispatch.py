"""What public functions launch for CUDA tensors, and what they refuse before they launch it."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

import sshsdp_mxfp.kernels.launch as launch_module
from sshsdp_mxfp import (
    E5M2,
    MXFP4,
    MXFP8,
    MissingTritonError,
    MXTensor,
    PackedLayout,
    QuantizeBatch,
    QuantizeJob,
    ScaleBatch,
    ScaleSpan,
    ScaleWrite,
    StackedLayout,
    SwizzledLayout,
    dequantize,
    pack_scales,
    pack_span,
    pack_spans,
    quantize,
    quantize_both,
    unpack_scales,
    write_scales,
)

SHAPE = (64, 256)
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


def floats(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="cuda")


def codes(*shape):
    return torch.empty(shape, dtype=torch.uint8, device="cuda")


def blank(shape=SHAPE, fmt=None):
    return MXTensor.empty(shape, fmt or MXFP8(), device="cuda")


def names(launched):
    return [launch.kernel.__name__ for launch in launched]


@needs_triton
def test_one_tensor_is_launched_directly(launched):
    q = quantize(floats(*SHAPE), MXFP8())
    assert q.device.type == "cuda"
    assert dequantize(q, torch.bfloat16).dtype == torch.bfloat16
    quantize_both(floats(*SHAPE), MXFP8(), transposed=True)
    assert names(launched) == ["quantize_one", "dequantize_matrix", "quantize_one"]
    assert [launch.programs for launch in launched] == [4, 4, 4]


@needs_triton
def test_many_tensors_of_many_shapes_are_one_launch(launched):
    shapes = [(64, 256), (32, 32), (3, 128, 64), (4096, 4096)]
    batch = QuantizeBatch([QuantizeJob(floats(*shape), blank(shape)) for shape in shapes])
    assert batch.launches == 1
    for _ in range(3):
        batch.run(step=1)
    assert names(launched) == 3 * ["quantize_many"]
    assert launched[0].programs == 4 + 1 + 12 + 4096  # tiles of 32x128


@needs_triton
def test_jobs_that_need_other_kernels_are_launches_of_their_own(launched):
    jobs = [
        QuantizeJob(floats(*SHAPE), blank()),
        QuantizeJob(floats(*SHAPE, dtype=torch.bfloat16), blank()),
        QuantizeJob(floats(*SHAPE), blank(fmt=MXFP8(element=E5M2))),
        QuantizeJob(floats(64, 224), blank((64, 224)), blank((64, 224), MXFP8((32, 1)))),
        QuantizeJob(floats(*SHAPE), blank()),
    ]
    assert QuantizeBatch(jobs).launches == 4
    assert launched == []


@needs_triton
def test_scales(launched):
    packed, swizzled = PackedLayout(64, 8), SwizzledLayout(64, 8)
    operand = pack_scales(codes(2, 8), packed, band=32)
    write_scales([ScaleWrite(codes(1, 8), packed, operand, row=32 * k, band=32) for k in (0, 1)])
    pack_span(codes(2, 8), swizzled, 0, 100, band=32)
    outs = [codes(100), codes(412)]
    spans = [
        ScaleSpan(codes(64, 8), swizzled, start, start + len(out), out)
        for start, out in zip((0, 100), outs, strict=True)
    ]
    pack_spans(spans)
    unpack_scales(operand, packed)
    stacked = StackedLayout(packed, 3)
    pack_scales(codes(3, 64, 8), stacked)
    assert names(launched) == [
        "fill_one", "write_many", "fill_one", "fill_many", "read_matrix", "fill_many",
    ]  # fmt: skip


@needs_triton
def test_scales_of_many_operands_are_one_launch(launched):
    layouts = [PackedLayout(rows, blocks) for rows, blocks in ((64, 8), (30, 5), (4096, 128))]
    batch = ScaleBatch([
        ScaleSpan(codes(layout.rows, layout.blocks), layout, 0, layout.cells, codes(layout.cells))
        for layout in layouts
        if layout.cells % 16 == 0
    ])  # fmt: skip
    assert batch.launches == 1
    batch.run()
    assert names(launched) == ["fill_many"]


@needs_triton
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: quantize(floats(*SHAPE, dtype=torch.float64), MXFP8()), "got torch.float64; use"),
        (lambda: quantize(floats(48, 48), MXFP8((1, 24))), "powers of 2 up to 128 .*, got 1x24"),
        (lambda: quantize(floats(256, 256), MXFP8((1, 256))), "up to 128 on cuda:0, got 1x256"),
        (lambda: dequantize(blank(), torch.float64), "got torch.float64; use the CPU"),
        (lambda: quantize(floats(*SHAPE), MXFP8(), out=MXTensor.empty(SHAPE, MXFP8())),
         r"out of shape .* on cuda:0, got .* on cpu"),
        (lambda: quantize(floats(1 << 31, 32), MXFP8()), r"expected rows below 2\^31 - 2\^15, got"),
        (lambda: quantize(floats(32, 1 << 31), MXFP8((32, 1))), r"expected columns below 2\^31"),
        (lambda: QuantizeBatch([
            QuantizeJob(floats(*SHAPE), blank()),
            QuantizeJob(torch.empty(SHAPE), MXTensor.empty(SHAPE, MXFP8())),
        ]), "expected all tensors on cuda:0, got one on cpu|expected tensors on a CUDA device"),
        (lambda: QuantizeBatch([QuantizeJob(floats(*SHAPE), blank(), blank(fmt=MXFP4()))]),
         "both results with the same elements and rule"),
        (lambda: QuantizeBatch([QuantizeJob(floats(*SHAPE), blank((32, 256)))]),
         r"expected out of shape \[64, 256\] on cuda:0, got \[32, 256\]"),
        (lambda: quantize_both(floats(64), MXFP8()), "at least 2 dimensions"),
        (lambda: quantize_both(floats(*SHAPE), MXFP4(), transposed=True), "of whole bytes"),
        (lambda: ScaleBatch([
            ScaleWrite(codes(4, 4), PackedLayout(4, 4), PackedLayout(4, 4).allocate("cuda")),
            ScaleWrite(torch.empty(4, 4, dtype=torch.uint8), PackedLayout(4, 4),
                       PackedLayout(4, 4).allocate()),
        ]), "expected all tensors on cuda:0, got one on cpu"),
    ],
)  # fmt: skip
def test_what_is_refused(launched, make, text):
    with pytest.raises(ValueError, match=text):
        make()
    assert launched == []


@needs_triton
def test_results_without_adjacent_elements_are_refused(launched):
    data = codes(64, 512).as_strided(SHAPE, (512, 2))
    out = MXTensor(data.view(torch.float8_e4m3fn), blank().scale, MXFP8(), torch.Size(SHAPE))
    with pytest.raises(ValueError, match="adjacent elements in rows or in columns, got strides"):
        quantize(floats(*SHAPE), MXFP8(), out=out)


def test_without_triton_there_is_a_clear_error(launched, monkeypatch):
    monkeypatch.setattr(launch_module, "find_spec", lambda _: None)
    for make in (
        lambda: quantize(floats(*SHAPE), MXFP8()),
        lambda: dequantize(blank()),
        lambda: pack_scales(codes(4, 4), PackedLayout(4, 4)),
    ):
        with pytest.raises(MissingTritonError, match=r"found none; install sshsdp-mxfp\[cuda\]"):
            make()


@needs_triton
def test_kernels_do_not_run_on_cpus():
    from sshsdp_mxfp.kernels.quantize import prepare

    with pytest.raises(ValueError, match="expected tensors on a CUDA device, got cpu"):
        prepare([QuantizeJob(torch.empty(SHAPE), MXTensor.empty(SHAPE, MXFP8()))])


def test_importing_and_working_on_cpus_needs_no_triton():
    text = (
        "import sys; sys.modules['triton'] = None; import torch, sshsdp_mxfp as m;"
        "q = m.quantize(torch.ones(32, 32), m.MXFP8()); m.pack_scales(q.scale, "
        "m.PackedLayout(32, 1)); assert m.dequantize(q).eq(1).all()"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=200)
