"""Every backend gives the products of the values that its operands stand for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from sshsdp_mxfp import (
    E4M3,
    E5M2,
    MXFP8,
    GemmOperand,
    PackedLayout,
    SwizzledLayout,
    mx_matmul,
    mx_weight_grad,
    pack_scales,
    quantize,
    quantize_both,
)
from sshsdp_mxfp.gemm import reference


@pytest.fixture(params=["reference", "torch", "deep_gemm"])
def backend(request, declare, deep_gemm, torch_gemm):
    declare((10, 0), deep_gemm(10))
    return request.param


def wild(*shape):
    """Values whose scales differ from block to block."""
    return torch.randn(shape) * torch.exp2(torch.randint(-6, 7, shape).float())


def close(result, left, right, dtype):
    """Up to the rounding of sums and of the result."""
    expected = left.double() @ right.double()
    room = left.abs().double() @ right.abs().double()
    limit = torch.finfo(dtype).eps * expected.abs() + 1e-5 * room
    assert ((result.double() - expected).abs() <= limit).all()


@settings(max_examples=30)
@given(
    m=st.integers(1, 70),
    n=st.integers(1, 12).map(lambda n: 16 * n),
    k=st.integers(1, 9).map(lambda k: 32 * k),
    square=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@pytest.mark.parametrize("name", ["reference", "torch", "deep_gemm"])
def test_forward(name, m, n, k, square, dtype, request):
    request.getfixturevalue("declare")((10, 0), request.getfixturevalue("deep_gemm")(10))
    request.getfixturevalue("torch_gemm")
    n = -(-n // 32) * 32 if square else n
    x, w = quantize(wild(m, k), MXFP8()), quantize(wild(n, k), MXFP8((32 if square else 1, 32)))
    result = mx_matmul(x, w.mT, dtype=dtype, backend=name)
    assert result.dtype == dtype
    close(result, x.dequantize(), w.mT.dequantize(), dtype)


def test_the_three_products_of_a_layer(backend):
    x, w, dy = wild(96, 160), wild(64, 160), wild(96, 64)
    square = quantize(w, MXFP8((32, 32)))
    transposed = backend == "torch"
    x_rows, x_columns = quantize_both(x, MXFP8(), transposed=transposed)
    dy_rows, dy_columns = quantize_both(dy, MXFP8(), transposed=transposed)
    b = GemmOperand(square, -2)
    for result, left, right in (
        (mx_matmul(x_rows, square.mT, backend=backend), x_rows, square.mT),
        (mx_matmul(dy_rows, b.adjacent() if transposed else b, backend=backend), dy_rows, square),
        (mx_weight_grad(dy_columns, x_columns, backend=backend), dy_columns.mT, x_columns),
    ):
        close(result, left.dequantize(), right.dequantize(), torch.float32)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_range_of_rows_of_a_packed_weight_into_a_buffer(backend, kind, accumulate):
    x = quantize_both(wild(64, 96), MXFP8(), transposed=backend == "torch")[1]
    dy = quantize_both(wild(64, 192), MXFP8(), transposed=backend == "torch")[1]
    before = wild(192, 96).to(kind)
    buffer = before.clone()
    rows = slice(64, 144)
    result = mx_weight_grad(
        dy, x, rows=rows, out=buffer[rows], accumulate=accumulate, backend=backend
    )
    assert result.data_ptr() == buffer[rows].data_ptr()
    assert torch.equal(buffer[:64], before[:64])
    assert torch.equal(buffer[144:], before[144:])
    left, right = dy.mT.dequantize()[rows], x.dequantize()
    left = torch.cat([left, before[rows].float()], 1) if accumulate else left
    right = torch.cat([right, torch.eye(96)]) if accumulate else right
    close(buffer[rows], left, right, kind)


def test_scales_in_a_kernels_layout_are_used_as_they_are(declare, deep_gemm, torch_gemm):
    declare((10, 0), deep_gemm(10))
    x, w = quantize(wild(32, 128), MXFP8()), quantize(wild(64, 128), MXFP8((32, 32)))
    expected = mx_matmul(x, w.mT, backend="reference")
    for layout, name in ((PackedLayout(64, 4), "deep_gemm"), (SwizzledLayout(64, 4), "torch")):
        scales = pack_scales(w.scale, layout, band=32)
        operand = GemmOperand.laid_out(w.data, scales, layout)
        assert operand.scales_as(layout) is scales
        close(mx_matmul(x, operand, backend=name), x.dequantize(), w.mT.dequantize(), torch.float32)
        # The reference reads them back.
        assert torch.equal(mx_matmul(x, operand, backend="reference"), expected)


@pytest.mark.parametrize(("a", "b"), [(E5M2, E4M3), (E4M3, E5M2)])
def test_one_side_of_e5m2(a, b, declare, torch_gemm):
    declare((10, 0))
    x, w = quantize(wild(32, 64), MXFP8(element=a)), quantize(wild(32, 64), MXFP8(element=b))
    result = mx_matmul(x, w.mT)
    assert torch_gemm.calls == ["dense"]
    close(result, x.dequantize(), w.mT.dequantize(), torch.float32)


def test_scales_are_made_once_for_an_operand(declare, deep_gemm, monkeypatch):
    declare((10, 0), deep_gemm(10))
    made = []
    real = pack_scales
    monkeypatch.setattr(
        "sshsdp_mxfp.gemm.operand.pack_scales",
        lambda *args, **options: made.append(1) or real(*args, **options),
    )
    weight = GemmOperand(quantize(wild(64, 64), MXFP8((32, 32))))
    for _ in range(3):
        mx_matmul(quantize(wild(32, 64), MXFP8()), weight)
    assert len(made) == 1 + 3


@pytest.mark.parametrize("accumulate", [False, True])
def test_sums_of_nothing(backend, accumulate):
    out = torch.full((32, 64), 3.0)
    x, w = quantize(torch.ones(32, 0), MXFP8()), quantize(torch.ones(64, 0), MXFP8())
    mx_matmul(x, w.mT, out=out, accumulate=accumulate, backend=backend)
    assert (out == (3 if accumulate else 0)).all()
    none = quantize(torch.ones(0, 32), MXFP8())
    other = quantize(torch.ones(64, 32), MXFP8())
    assert mx_matmul(none, other.mT, backend=backend).shape == (0, 64)


def test_the_reference_is_exact(declare):
    x, w = quantize(wild(33, 64), MXFP8()), quantize(wild(20, 64), MXFP8())
    expected = x.dequantize() @ w.dequantize().t()
    assert torch.equal(mx_matmul(x, w.mT), expected)
    wide = x.dequantize(torch.float64) @ w.dequantize(torch.float64).t()
    assert torch.equal(mx_matmul(x, w.mT, dtype=torch.float64), wide)
    assert torch.equal(mx_matmul(x, w.mT, dtype=torch.bfloat16), expected.bfloat16())
    out = wild(33, 20)
    added = torch.addmm(out, x.dequantize(), w.dequantize().t())
    assert torch.equal(mx_matmul(x, w.mT, out=out, accumulate=True), added)


def test_autocast_does_not_round_operands():
    x, w = quantize(wild(33, 64), MXFP8()), quantize(wild(20, 64), MXFP8())
    expected = mx_matmul(x, w.mT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(mx_matmul(x, w.mT), expected)


@pytest.mark.parametrize(
    ("dtype", "accumulate"),
    [
        (torch.float32, False),
        (torch.bfloat16, False),
        (torch.float16, False),
        (torch.float32, True),  # builds for CPUs can't add other dtypes of fake tensors
    ],
)
def test_on_gpus_the_reference_multiplies_bfloat16_and_sums_float32(dtype, accumulate):
    """With fake CUDA tensors: which product is asked for, and that settings are put back."""
    seen = []
    flags = torch.backends.cuda.matmul

    def state():
        return flags.allow_bf16_reduced_precision_reduction, flags.fp32_precision

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if "mm" in function.__name__:
                seen.append((args[0].dtype, result.dtype, state()))
            return result

    before = state()
    with FakeTensorMode(), Watch():
        left = torch.empty(32, 64, dtype=torch.bfloat16, device="cuda")
        out = torch.empty(32, 32, dtype=dtype, device="cuda") if accumulate else None
        result = reference._multiply(left, left.t(), dtype, out, accumulate)
        assert (result.dtype, result.device.type) == (dtype, "cuda")
    kind = torch.float32 if accumulate or dtype != torch.bfloat16 else torch.bfloat16
    assert seen == [(torch.bfloat16, kind, (False, "ieee"))]
    assert state() == before == (True, "none")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_a_programs_own_precision_is_put_back(device, precision):
    flags = torch.backends.cuda.matmul if device == "cuda" else torch.backends.mkldnn.matmul
    before = flags.fp32_precision
    try:
        flags.fp32_precision = precision  # the newer setting: the older one can't be read any more
        with pytest.raises(KeyError), reference.full_precision(torch.device(device)):
            raise KeyError(flags.fp32_precision)
        assert flags.fp32_precision == precision
        with reference.full_precision(torch.device(device)):
            assert flags.fp32_precision == "ieee"
    finally:
        flags.fp32_precision = before
