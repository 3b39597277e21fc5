"""What a kernel can't do is an error that names the operand, before anything is launched."""

import pytest
import torch

from sshsdp_mxfp import (
    MXFP4,
    MXFP8,
    GemmOperand,
    GemmSizes,
    MXTensor,
    PackedLayout,
    WeightGrad,
    mx_linear,
    mx_matmul,
    mx_weight_grad,
    quantize,
    quantize_both,
)


@pytest.fixture(params=["torch", "deep_gemm"])
def kernel(request, declare, deep_gemm, torch_gemm):
    """A backend on which nothing may be launched."""
    library = deep_gemm(10)
    declare((10, 0), library)
    yield request.param
    assert not torch_gemm.calls
    assert not library._C.calls


def mx(*shape, block=(1, 32), **options):
    return quantize(torch.randn(shape), MXFP8(block, **options))


def misplaced(rows, columns, start):
    """Elements that begin at an address of their own."""
    memory = torch.empty(rows * columns + 64, dtype=torch.uint8)
    codes = memory[start:][: rows * columns].view(rows, columns)
    good = mx(rows, columns)
    codes.copy_(good.codes)
    return MXTensor(codes.view(torch.float8_e4m3fn), good.scale, good.format, good.shape)


def pitched(rows, columns, pitch):
    """Elements whose rows are apart."""
    good = mx(rows, columns)
    codes = torch.empty(rows, pitch, dtype=torch.uint8)[:, :columns]
    codes.copy_(good.codes)
    return MXTensor(codes.view(torch.float8_e4m3fn), good.scale, good.format, good.shape)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: (mx(32, 40, ragged="partial"), mx(32, 40, ragged="partial").mT),
            "expected K to be a multiple of 32 for .*, got 40; pad it to 64",
        ),
        (
            lambda: (mx(32, 64), mx(24, 64).mT),
            "expected N to be a multiple of 16 for .*, got 24; pad it to 32",
        ),
        (lambda: (misplaced(32, 64, 8), mx(32, 64).mT), "expected a with its address .*, got"),
        (lambda: (mx(32, 64), misplaced(32, 64, 4).mT), "expected b with its address .*, got"),
        (lambda: (pitched(32, 64, 72), mx(32, 64).mT), "expected a with its pitch .*, got 72"),
        (lambda: (mx(32, 64), pitched(32, 64, 72).mT), "expected b with its pitch .*, got 72"),
    ],
)
def test_sizes_and_places(kernel, make, text):
    a, b = make()
    with pytest.raises(ValueError, match=text):
        mx_matmul(a, b, backend=kernel)


def test_a_range_of_rows_at_no_multiple(declare, deep_gemm):
    declare((10, 0), deep_gemm(10))
    dy, x = (quantize_both(torch.randn(32, 64), MXFP8())[1] for _ in range(2))
    with pytest.raises(ValueError, match="expected a with its address at a multiple of 16 bytes"):
        mx_weight_grad(dy, x, rows=slice(8, 24), backend="deep_gemm")


def test_torch_wants_elements_adjacent_along_k(declare, torch_gemm):
    declare((10, 0))
    dy, x = (quantize_both(torch.randn(32, 64), MXFP8())[1] for _ in range(2))
    with pytest.raises(ValueError, match=r"a with elements adjacent along K for torch.*transposed"):
        mx_weight_grad(dy, x, backend="torch")
    with pytest.raises(ValueError, match=r"b with elements adjacent along K for torch"):
        mx_matmul(mx(32, 64), mx(64, 32, block=(32, 32)), backend="torch")
    assert not torch_gemm.calls


def test_elements_of_less_than_8_bits(kernel):
    q = quantize(torch.randn(32, 64), MXFP4())
    with pytest.raises((ValueError, RuntimeError), match="E4M3"):
        mx_matmul(GemmOperand(q), GemmOperand(q), backend=kernel)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_results_that_deep_gemm_has_not(declare, deep_gemm, dtype):
    declare((10, 0), deep_gemm(10))
    with pytest.raises(ValueError, match=r"a result of torch\.float32 or torch\.bfloat16 for deep"):
        mx_matmul(mx(32, 64), mx(32, 64).mT, dtype=dtype, backend="deep_gemm")


def test_sizes_can_be_asked_without_tensors():
    GemmSizes(1, 48, 96).check("torch")
    GemmSizes(1, 7, 5).check("reference")
    with pytest.raises(ValueError, match="K to be a multiple of 32 for deep_gemm, got 48"):
        GemmSizes(1, 48, 48).check("deep_gemm")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: mx_matmul(mx(32, 64), mx(32, 96).mT), "expected b with K = 64 .*, got 96"),
        (
            lambda: mx_matmul(mx(32, 64), mx(64, 32)),
            "b: expected blocks of 32 along rows, which are contracted, got blocks of 1x32",
        ),
        (
            lambda: mx_matmul(mx(32, 64, block=(32, 1)), mx(32, 64).mT),
            "a: expected blocks of 32 along columns, .* got blocks of 32x1; quantize it along",
        ),
        (lambda: mx_matmul(mx(32, 64, block=(1, 16)), mx(32, 64).mT), "got blocks of 1x16"),
        (lambda: mx_matmul(mx(32), mx(32, 32).mT), r"a: expected a matrix or a stack"),
        (lambda: mx_matmul(mx(2, 32, 32), mx(32, 32).mT), "expected a to be a matrix, got shape"),
        (
            lambda: mx_matmul(mx(32, 32), mx(32, 32).mT, accumulate=True),
            "expected out to add to with accumulate=True, got none",
        ),
        (
            lambda: mx_matmul(mx(32, 32), mx(32, 32).mT, out=torch.empty(3, 3)),
            r"expected out of shape \[32, 32\] on cpu, got \[3, 3\]",
        ),
        (
            lambda: mx_matmul(mx(32, 32), mx(32, 32).mT, dtype=torch.int32),
            r"expected a result of .*, got torch\.int32",
        ),
        (
            lambda: mx_matmul(
                mx(32, 32), mx(32, 32).mT, dtype=torch.bfloat16, out=torch.empty(32, 32)
            ),
            r"expected out of torch\.bfloat16, got torch\.float32",
        ),
        (
            lambda: mx_matmul(mx(32, 32), mx(32, 32).mT, out=torch.empty(32, 32, device="meta")),
            "on cpu, got .* on meta",
        ),
        (lambda: GemmOperand(mx(32, 32), 0), "an axis of -1"),
        (
            lambda: GemmOperand.laid_out(
                mx(32, 64).data, PackedLayout(32, 1).allocate(), PackedLayout(32, 1)
            ),
            r"expected a layout of \[32, 2\] scales .*, got \[32, 1\]",
        ),
        (
            lambda: GemmOperand.laid_out(
                torch.ones(32, 64), PackedLayout(32, 2).allocate(), PackedLayout(32, 2)
            ),
            r"of torch\.float8_e4m3fn or .*, got \[32, 64\] of torch\.float32",
        ),
        (
            lambda: mx_linear(torch.ones(3, 64), torch.ones(32, 96)),
            r"expected x \[\.\.\., in\] and a weight \[out, in\], got \[3, 64\] and \[32, 96\]",
        ),
        (
            lambda: mx_linear(torch.ones(3, 40), torch.ones(32, 40)),
            r"expected sizes that are multiples of the block 32x32, got shape \[32, 40\]",
        ),
        (
            lambda: mx_linear(torch.ones(3, 64), torch.ones(32, 64), fmt=MXFP8((32, 32))),
            "expected fmt with blocks of 1x32, got 32x32",
        ),
        (
            lambda: mx_linear(torch.ones(3, 64), torch.ones(32, 64, device="meta")),
            "expected a weight on cpu where x is, got meta",
        ),
        (lambda: mx_linear(torch.ones(3, 64).int(), torch.ones(32, 64)), r"got torch\.int32"),
        (
            lambda: mx_linear(
                torch.ones(3, 64),
                torch.ones(32, 64, requires_grad=True),
                weight_grad=WeightGrad(torch.ones(32, 64).half()),
            ),
            r"expected weight_grad of shape \[32, 64\] in float32 or bfloat16 on cpu",
        ),
    ],
)
def test_bad_input(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_what_is_no_quantized_tensor():
    with pytest.raises(TypeError, match=r"expected a to be an MXTensor .*, got Tensor; make one"):
        mx_matmul(torch.ones(32, 32), mx(32, 32).mT)
