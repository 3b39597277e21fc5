"""FP8Block128: values of DeepGEMM's own casts, its calls on sm_90, gradients of dequantized."""

import importlib.util
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from sshsdp_mxfp import (
    MXFP8,
    FP8Block128,
    FP8Tensor,
    fp8_matmul,
    mx_grouped_linear,
    mx_linear,
    quantize_weight,
)
from sshsdp_mxfp.layouts import RowGroups

SQUARE = FP8Block128((128, 128))
ALONG_TOKENS = FP8Block128((128, 1))


@pytest.fixture(scope="module")
def casts():
    """The provider's casts, in torch."""
    spec = find_spec("deep_gemm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("no provider of deep_gemm is installed (sgl-deep-gemm on Linux x86-64)")
    path = Path(next(iter(spec.submodule_search_locations))) / "utils" / "math.py"
    found = importlib.util.spec_from_file_location("deep_gemm_casts", path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_and_scales_of_the_providers_casts(casts, dtype):
    x = (torch.randn(256, 384) * torch.exp2(torch.randint(-8, 9, (256, 384)).float())).to(dtype)
    for fmt, cast in (
        (FP8Block128(), casts.per_token_cast_to_fp8),
        (ALONG_TOKENS, casts.per_channel_cast_to_fp8),
        (SQUARE, casts.per_block_cast_to_fp8),
    ):
        result = fmt.quantize(x)
        data, scale = cast(x, use_ue8m0=False)
        assert torch.equal(result.scale, scale)
        assert torch.equal(result.data.view(torch.uint8), data.view(torch.uint8))


def test_rows_are_adjacent_whatever_the_order_of_the_input():
    x = torch.randn(256, 128)
    result = ALONG_TOKENS.quantize(x)
    turned = FP8Block128().quantize(x.t())
    assert turned.data.is_contiguous()
    assert torch.equal(turned.mT.data.view(torch.uint8), result.data.view(torch.uint8))


def test_tiny_and_special_blocks():
    x = torch.zeros(4, 128)
    x[1, 0], x[2, 0], x[3, 0] = 2.0**-140, float("inf"), float("nan")
    result = FP8Block128().quantize(x)
    assert result.scale[0, 0] == result.scale[1, 0] == 2.0**-126
    values = result.dequantize()
    assert not values[0].any()
    assert values[2:].isnan().all()
    assert values[1, 0] == 0  # below half of the smallest element


def test_error_is_within_half_a_step():
    x = torch.randn(128, 256)
    values = FP8Block128().quantize(x).dequantize()
    step = x.abs().view(128, 2, 128).amax(2).repeat_interleave(128, 1) / 448 * 2.0**-9
    assert ((values - x).abs() <= x.abs() * (2.0**-4 + 1e-6) + step).all()


def by_hand(x, weight, dy):
    w = SQUARE.quantize(weight).dequantize()
    pad = (0, 0, 0, -len(x) % 128)
    left, right = (
        ALONG_TOKENS.quantize(torch.nn.functional.pad(part, pad)).dequantize() for part in (dy, x)
    )
    rows = [FP8Block128().quantize(part).dequantize() for part in (x, dy)]
    return rows[0] @ w.t(), rows[1] @ w, left.t() @ right


def case(tokens=40):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, 128, generator=generator, requires_grad=True)
    weight = torch.randn(256, 128, generator=generator).requires_grad_()
    return x, weight, torch.randn(tokens, 256, generator=generator)


@pytest.mark.parametrize("tokens", [0, 1, 40, 128])
def test_gradients_of_the_reference_are_exact(tokens):
    x, weight, dy = case(tokens)
    y = mx_linear(x, weight, fmt=FP8Block128())
    y.backward(dy)
    for result, wanted in zip(
        (y, x.grad, weight.grad), by_hand(x.detach(), weight.detach(), dy), strict=True
    ):
        assert torch.equal(result, wanted)


def test_calls_on_hopper(declare, deep_gemm):
    library = deep_gemm(9)
    declare((9, 0), library)
    x, weight, dy = case()
    y = mx_linear(x, weight, fmt=FP8Block128())
    y.backward(dy)
    assert library._C.calls == ["dense"] * 3
    expected = by_hand(x.detach(), weight.detach(), dy)
    torch.testing.assert_close(y, expected[0], rtol=2**-8, atol=1e-3)
    torch.testing.assert_close(x.grad, expected[1], rtol=2**-8, atol=1e-3)
    torch.testing.assert_close(weight.grad, expected[2], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_buffer_on_hopper(declare, deep_gemm, dtype, accumulate):
    declare((9, 0), deep_gemm(9))
    x, _, dy = case(128)
    left, right = ALONG_TOKENS.quantize(dy).mT, ALONG_TOKENS.quantize(x.detach())
    left, right = left.adjacent(), right.mT.adjacent().mT
    before = torch.randn(256, 128).to(dtype)
    out = before.clone()
    fp8_matmul(left, right, out=out, accumulate=accumulate)
    expected = left.dequantize() @ right.dequantize() + (before.float() if accumulate else 0)
    rtol = 2**-7 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(out.float(), expected.to(dtype).float(), rtol=rtol, atol=1e-4)


def test_hopper_wants_elements_adjacent_along_k(declare, deep_gemm):
    library = deep_gemm(9)
    declare((9, 0), library)
    x, w = FP8Block128().quantize(torch.randn(8, 256)), SQUARE.quantize(torch.randn(256, 128))
    with pytest.raises(ValueError, match=r"expected b\.mT with elements adjacent along K"):
        fp8_matmul(x, w)
    assert not library._C.calls
    assert fp8_matmul(x, w.mT.adjacent().mT).shape == (8, 128)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: FP8Block128((1, 32)), ValueError, r"expected a block of \(1, 128\)"),
        (lambda: SQUARE.quantize(torch.ones(128, 100)), ValueError, r"pad it to \[128, 128\]"),
        (lambda: SQUARE.quantize(torch.ones(128)), ValueError, "expected a matrix, got shape"),
        (
            lambda: SQUARE.quantize(torch.ones(128, 128).double()),
            ValueError,
            r"expected float32, bfloat16 or float16, got torch\.float64",
        ),
        (
            lambda: FP8Tensor(torch.ones(1, 128), torch.ones(1, 1), FP8Block128()),
            ValueError,
            r"expected data of torch\.float8_e4m3fn",
        ),
        (
            lambda: fp8_matmul(SQUARE.quantize(torch.ones(128, 128)), None),
            TypeError,
            "expected b to be an FP8Tensor, got NoneType",
        ),
        (
            lambda: mx_linear(
                torch.ones(1, 128),
                torch.ones(128, 128),
                fmt=FP8Block128(),
                quantized=quantize_weight(torch.ones(128, 128), MXFP8()),
            ),
            TypeError,
            "quantized as fmt says, got one of GemmOperand",
        ),
        (
            lambda: mx_linear(
                torch.ones(1, 128), torch.ones(128, 128), fmt=FP8Block128(), grad_fmt=MXFP8()
            ),
            ValueError,
            r"expected FP8Block128\(\) alone",
        ),
        (
            lambda: mx_grouped_linear(
                torch.ones(32, 128), torch.ones(1, 128, 128), RowGroups((32,), 32),
                fmt=FP8Block128(),
            ),
            ValueError,
            "expected an MX format for groups",
        ),
    ],
)  # fmt: skip
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text):
        call()
