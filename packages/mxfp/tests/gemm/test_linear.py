"""Gradients of mx_linear are those of the same products of dequantized operands."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from sshsdp_mxfp import (
    E5M2,
    MXFP4,
    MXFP6,
    MXFP8,
    FP8Block128,
    WeightGrad,
    mx_linear,
    quantize,
    quantize_weight,
)

SQUARE = (32, 32)


def rows_of(x, fmt=None):
    """Values of a matrix that was quantized along features."""
    return quantize(x, fmt or MXFP8()).dequantize()


def columns_of(x, kind=MXFP8, **options):
    """Values of a matrix that was quantized along tokens."""
    return quantize(x, kind((32, 1), ragged="partial", **options)).dequantize()


def by_hand(x, weight, dy):
    """Output, and gradients of input and weight."""
    w = quantize(weight, MXFP8(SQUARE)).dequantize()
    pad = (0, 0, 0, -len(x) % 32)  # sums are over whole blocks of tokens
    left, right = (torch.nn.functional.pad(columns_of(part), pad) for part in (dy, x))
    return rows_of(x) @ w.t(), rows_of(dy) @ w, left.t() @ right


def case(tokens=40, features=96, outputs=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, features, generator=generator, requires_grad=True)
    weight = torch.randn(outputs, features, generator=generator).requires_grad_()
    dy = torch.randn(tokens, outputs, generator=generator) * 1e-3
    return x, weight, dy


@pytest.mark.parametrize("tokens", [1, 31, 32, 40, 96])
def test_equal_bit_for_bit(tokens):
    x, weight, dy = case(tokens)
    y = mx_linear(x, weight)
    y.backward(dy)
    expected = by_hand(x.detach(), weight.detach(), dy)
    for result, wanted in zip((y, x.grad, weight.grad), expected, strict=True):
        assert torch.equal(result, wanted)


def test_leading_dimensions_and_bias():
    x, weight, dy = case(30)
    bias = torch.randn(64, requires_grad=True)
    y = mx_linear(x.view(2, 3, 5, 96), weight, bias)
    y.backward(dy.view(2, 3, 5, 64))
    expected = by_hand(x.detach(), weight.detach(), dy)
    assert torch.equal(y, (expected[0] + bias).view(2, 3, 5, 64))
    assert torch.equal(x.grad, expected[1])
    assert torch.equal(weight.grad, expected[2])
    assert torch.equal(bias.grad, dy.sum(0))


def test_no_tokens():
    x, weight, dy = case(0)
    y = mx_linear(x, weight, torch.ones(64))
    y.backward(dy)
    assert y.shape == (0, 64)
    assert x.grad.shape == (0, 96)
    assert torch.equal(weight.grad, torch.zeros_like(weight))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_of_the_input(dtype):
    x, weight, dy = (part.detach() for part in case())
    x, dy = x.to(dtype).requires_grad_(), dy.to(dtype)
    weight.requires_grad_()  # a float32 weight of inputs in another dtype
    y = mx_linear(x, weight)
    y.backward(dy)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    w = quantize(weight.detach(), MXFP8(SQUARE)).dequantize(wide)
    product = quantize(x.detach(), MXFP8()).dequantize(wide) @ w.t()
    assert torch.equal(y, product.to(dtype))
    assert (y.dtype, x.grad.dtype, weight.grad.dtype) == (dtype, dtype, torch.float32)


def test_gradients_of_another_format():
    x, weight, dy = case()
    mx_linear(x, weight, grad_fmt=MXFP8(element=E5M2)).backward(dy)
    w = quantize(weight.detach(), MXFP8(SQUARE)).dequantize()
    assert torch.equal(x.grad, rows_of(dy, MXFP8(element=E5M2)) @ w)
    assert not torch.equal(x.grad, rows_of(dy) @ w)


@pytest.mark.parametrize("fmt", [MXFP6(), MXFP4(), MXFP8(rule="floor")])
def test_formats_that_only_the_reference_multiplies(fmt):
    x, weight, dy = case(32)
    y = mx_linear(x, weight, fmt=fmt)
    y.backward(dy)
    kind = type(fmt)
    w = quantize(weight.detach(), kind(SQUARE, rule=fmt.rule)).dequantize()
    assert torch.equal(y, rows_of(x.detach(), fmt) @ w.t())
    assert torch.equal(x.grad, rows_of(dy, fmt) @ w)
    left, right = (columns_of(part, kind, rule=fmt.rule) for part in (dy, x.detach()))
    assert torch.equal(weight.grad, left.t() @ right)


def test_a_weight_used_twice_gets_both_gradients():
    x, weight, dy = case()
    other = torch.randn(40, 96)
    (mx_linear(x, weight) * dy).sum().backward()
    first = weight.grad.clone()
    weight.grad = None
    (mx_linear(other, weight) * dy).sum().backward()
    second = weight.grad.clone()
    weight.grad = None
    ((mx_linear(x, weight) + mx_linear(other, weight)) * dy).sum().backward()
    assert torch.equal(weight.grad, first + second)


def test_a_quantized_weight_is_used_as_it_is():
    x, weight, dy = case()
    ready = quantize_weight(weight, MXFP8())
    expected = by_hand(x.detach(), weight.detach(), dy)
    with torch.no_grad():
        weight.zero_()  # isn't read any more
    for _ in range(2):
        y = mx_linear(x, weight, quantized=ready)
        y.backward(dy)
        assert torch.equal(y, expected[0])
    assert torch.equal(x.grad, 2 * expected[1])
    assert torch.equal(weight.grad, 2 * expected[2])


def test_nothing_is_quantized_for_gradients_that_nobody_wants(monkeypatch):
    seen = []
    from sshsdp_mxfp.gemm.plan import MXPlan

    real = MXPlan.quantize

    def watched(self, x, **options):
        seen.append((options["rows"], options["columns"]))
        return real(self, x, **options)

    monkeypatch.setattr(MXPlan, "quantize", watched)
    x, weight, dy = case()
    with torch.no_grad():
        mx_linear(x, weight)
    mx_linear(x.detach(), weight).backward(dy)
    mx_linear(x, weight.detach()).backward(dy)
    assert seen == [(True, False), (True, True), (False, True), (True, False), (True, False)]


def test_backward_keeps_bytes_of_the_input_and_not_the_input():
    x, weight, _ = case(64)
    kept = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
    with hooks:
        mx_linear(x, weight)
    assert sum(t.nbytes for t in kept) == 64 * 96 + 64 * 96 // 32
    assert {t.dtype for t in kept} == {torch.uint8}


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_in_backward(reentrant):
    x, weight, dy = case()
    expected = by_hand(x.detach(), weight.detach(), dy)
    y = checkpoint(mx_linear, x, weight, use_reentrant=reentrant)
    y.backward(dy)
    for result, wanted in zip((y, x.grad, weight.grad), expected, strict=True):
        assert torch.equal(result, wanted)


def test_autocast_sets_the_dtype_of_the_output_and_nothing_else():
    x, weight, dy = case()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = mx_linear(x, weight)
    assert y.dtype == torch.bfloat16
    y.backward(dy.bfloat16())
    expected = by_hand(x.detach(), weight.detach(), dy.bfloat16().float())
    assert torch.equal(y, expected[0].bfloat16())
    assert x.grad.dtype == weight.grad.dtype == torch.float32
    assert torch.equal(x.grad, expected[1])
    assert torch.equal(weight.grad, expected[2])


def test_second_derivatives_are_refused():
    x, weight, _ = case()
    (grad,) = torch.autograd.grad(mx_linear(x, weight).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fmt", [MXFP8(), FP8Block128()])
def test_gradients_into_a_buffer(dtype, fmt):
    x, weight, dy = case(40, 128, 256)
    mx_linear(x, weight, fmt=fmt).backward(dy)
    wanted, weight.grad = weight.grad.clone(), None
    buffer = torch.full((256, 128), float("nan"), dtype=dtype)
    mx_linear(x, weight, fmt=fmt, weight_grad=WeightGrad(buffer, accumulate=False)).backward(dy)
    assert torch.equal(buffer, wanted.to(dtype))
    mx_linear(x, weight, fmt=fmt, weight_grad=WeightGrad(buffer)).backward(dy)
    torch.testing.assert_close(buffer, (wanted.to(dtype).float() + wanted).to(dtype))
    assert weight.grad is None


def test_a_buffer_is_written_only_where_backward_wants_the_weight():
    x, weight, dy = case()
    wanted = by_hand(x.detach(), weight.detach(), dy)[2]
    buffer = torch.zeros_like(weight)

    def run():
        return mx_linear(x, weight, weight_grad=WeightGrad(buffer))

    torch.autograd.grad(run(), x, dy)
    run().backward(dy, inputs=[x])
    assert not buffer.any()
    (returned,) = torch.autograd.grad(run(), weight, dy)
    assert torch.equal(returned, wanted)
    assert not buffer.any()
    run().backward(dy, inputs=[x, weight])
    assert torch.equal(buffer, wanted)
    assert weight.grad is None


def test_an_unwanted_gradient_is_not_computed(monkeypatch):
    from sshsdp_mxfp.gemm.plan import MXPlan

    monkeypatch.setattr(MXPlan, "wgrad", lambda *_, **__: pytest.fail("computed"))
    x, weight, dy = case()
    y = mx_linear(x, weight, weight_grad=WeightGrad(torch.zeros_like(weight)))
    y.backward(dy, inputs=[x])


def test_a_buffer_for_a_view_of_a_weight():
    x, weight, dy = case()
    whole = torch.cat([weight.detach(), weight.detach()]).requires_grad_()
    buffer = torch.zeros_like(weight)
    mx_linear(x, whole[64:], weight_grad=WeightGrad(buffer)).backward(dy)
    assert torch.equal(buffer, by_hand(x.detach(), weight.detach(), dy)[2])


@pytest.mark.parametrize("backend", ["torch", "deep_gemm"])
def test_kernels_give_the_gradients_of_the_reference(backend, declare, deep_gemm, torch_gemm):
    x, weight, dy = case(40)
    mx_linear(x, weight).backward(dy)
    expected = x.grad.clone(), weight.grad.clone()
    x.grad = weight.grad = None
    library = deep_gemm(10)
    declare((10, 0), library)
    mx_linear(x, weight, backend=backend).backward(dy)
    calls = torch_gemm.calls if backend == "torch" else library._C.calls
    assert calls == ["dense"] * 3
    torch.testing.assert_close(x.grad, expected[0], rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(weight.grad, expected[1], rtol=1e-5, atol=1e-8)


def test_one_backend_for_all_products(declare, deep_gemm, torch_gemm):
    library = deep_gemm(10)
    declare((10, 0), library)
    x, weight, dy = case(32)
    mx_linear(x, weight, grad_fmt=MXFP8(element=E5M2)).backward(dy)  # E4M3 only in deep_gemm
    assert torch_gemm.calls == ["dense"] * 3
    assert not library._C.calls
