"""Products of groups: each group's rows with its own matrix, empty groups included."""

# ruff: noqa: ARG005 - cases are called alike

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sshsdp_mxfp import (
    MXFP8,
    GemmOperand,
    RowGroups,
    WeightGrad,
    mx_grouped_linear,
    mx_grouped_matmul,
    mx_grouped_weight_grad,
    mx_linear,
    mx_masked_matmul,
    quantize,
    quantize_weight,
)

SIZES = (40, 0, 128, 1)


def tokens_of(groups, features, seed=0):
    """Rows of groups, zeros in padding."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.zeros(groups.rows, features)
    for start, size in zip(groups.starts, groups.sizes, strict=True):
        x[start : start + size] = torch.randn(size, features, generator=generator)
    return x


def parts(groups, *tensors):
    for start, size in zip(groups.starts, groups.sizes, strict=True):
        yield tuple(tensor[start : start + size] for tensor in tensors)


@pytest.fixture(params=["reference", "torch", "deep_gemm"])
def backend(request, declare, deep_gemm, torch_gemm):
    declare((10, 0), deep_gemm(10))
    return request.param


def experts(groups, outputs, features):
    return torch.randn(
        len(groups.sizes), outputs, features, generator=torch.Generator().manual_seed(1)
    )


def test_groups_of_rows(backend):
    groups = RowGroups(SIZES, 128)
    x, w = quantize(tokens_of(groups, 96), MXFP8()), experts(groups, 64, 96)
    w = quantize(w, MXFP8((32, 32)))
    result = mx_grouped_matmul(x, w.mT, groups, backend=backend)
    assert result.dtype == torch.bfloat16
    expected = torch.zeros(groups.rows, 64)
    pairs = parts(groups, x.dequantize(), expected)
    for (left, target), right in zip(pairs, w.dequantize(), strict=True):
        target.copy_(left @ right.t())
    torch.testing.assert_close(result.float(), expected, rtol=2**-8, atol=1e-3)
    assert not result[groups.row_indices() < 0].any()


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_gradients_of_groups_into_a_buffer(backend, dtype, accumulate):
    groups = RowGroups(SIZES, 128)
    transposed = backend == "torch"

    def columns(x):
        if transposed:
            return quantize(x.t().contiguous(), MXFP8()).mT
        return quantize(x, MXFP8((32, 1)))

    dy, x = columns(tokens_of(groups, 64, 2)), columns(tokens_of(groups, 96))
    before = torch.randn(4, 64, 96).to(dtype)
    out = before.clone()
    mx_grouped_weight_grad(dy, x, groups, out=out, accumulate=accumulate, backend=backend)
    expected = before.float() if accumulate else torch.zeros(4, 64, 96)
    pairs = parts(groups, dy.dequantize(), x.dequantize())
    expected = expected + torch.stack([left.t() @ right for left, right in pairs])
    coarse = transposed or dtype == torch.bfloat16
    rtol, atol = (2**-7, 0.1) if coarse else (1e-5, 1e-4)
    torch.testing.assert_close(out.float(), expected, rtol=rtol, atol=atol)
    assert torch.equal(out[1], before[1] if accumulate else torch.zeros_like(out[1]))


@pytest.mark.parametrize("backend", ["reference", "deep_gemm"])
@pytest.mark.parametrize("host", [False, True])
def test_masked_groups(backend, host, declare, deep_gemm):
    declare((10, 0), deep_gemm(10))
    counts = [3, 0, 40]
    a = quantize(torch.randn(3, 40, 64), MXFP8())
    w = quantize(torch.randn(3, 32, 64), MXFP8((32, 32)))
    given_counts = counts if host else torch.tensor(counts)
    result = mx_masked_matmul(a, w.mT, given_counts, expected=16, backend=backend)
    left, right = a.dequantize(), w.dequantize()
    for group, count in enumerate(counts):
        expected = left[group, :count] @ right[group].t()
        torch.testing.assert_close(result[group, :count].float(), expected, rtol=2**-8, atol=1e-3)


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(0, 50), max_size=5))
def test_experts_are_linear_layers_of_their_own(sizes):
    groups = RowGroups(tuple(sizes), 32)
    x = tokens_of(groups, 64).requires_grad_()
    weight = experts(groups, 32, 64).requires_grad_()
    dy = tokens_of(groups, 32, 3)
    y = mx_grouped_linear(x, weight, groups)
    y.backward(dy)
    for group, (rows, result, dx, grad) in enumerate(parts(groups, x.detach(), y, x.grad, dy)):
        own = rows.clone().requires_grad_(), weight[group].detach().clone().requires_grad_()
        wanted = mx_linear(*own)
        wanted.backward(grad)
        assert torch.equal(result, wanted)
        assert torch.equal(dx, own[0].grad)
        # Sums over more or less padding may be in another order.
        torch.testing.assert_close(weight.grad[group], own[1].grad, rtol=1e-5, atol=1e-5)
    assert not y[groups.row_indices() < 0].any()


def test_kernels_give_the_gradients_of_the_reference(backend):
    groups = RowGroups(SIZES, 128)
    x, dy = tokens_of(groups, 96), tokens_of(groups, 64, 3)
    results = []
    for name in (backend, "reference"):
        leaf, weight = x.clone().requires_grad_(), experts(groups, 64, 96).requires_grad_()
        y = mx_grouped_linear(leaf, weight, groups, backend=name)
        y.backward(dy)
        results.append((y, leaf.grad, weight.grad))
    for result, expected in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, rtol=2**-7, atol=0.1)
    assert not results[0][2][1].any()


def test_all_groups_empty(backend):
    groups = RowGroups((0, 0), 128)
    x, weight = torch.zeros(0, 64, requires_grad=True), torch.ones(2, 32, 64, requires_grad=True)
    y = mx_grouped_linear(x, weight, groups, backend=backend)
    y.backward(torch.zeros(0, 32))
    assert y.shape == (0, 32)
    assert torch.equal(weight.grad, torch.zeros(2, 32, 64))


@pytest.mark.parametrize("accumulate", [False, True])
def test_all_groups_empty_into_a_buffer(backend, accumulate):
    groups = RowGroups((0, 0), 128)
    none = quantize(torch.zeros(0, 64), MXFP8((32, 1)))
    out = torch.ones(2, 64, 64)
    mx_grouped_weight_grad(none, none, groups, out=out, accumulate=accumulate, backend=backend)
    assert (out == (1 if accumulate else 0)).all()


def test_a_quantized_weight_and_a_buffer():
    groups = RowGroups(SIZES, 32)
    x, weight = tokens_of(groups, 64), experts(groups, 32, 64).requires_grad_()
    dy = tokens_of(groups, 32, 3)
    mx_grouped_linear(x, weight, groups).backward(dy)
    buffer = torch.ones(4, 32, 64)
    ready = quantize_weight(weight, MXFP8())
    target = WeightGrad(buffer, accumulate=True)
    y = mx_grouped_linear(x, weight, groups, quantized=ready, weight_grad=target)
    y.backward(dy)
    torch.testing.assert_close(buffer, weight.grad + 1)


@pytest.mark.parametrize("backend", ["torch", "deep_gemm"])
def test_places_of_groups_that_kernels_do_not_take(backend, declare, deep_gemm, torch_gemm):
    declare((10, 0), deep_gemm(10))
    groups = RowGroups((32, 64), 32)
    x, w = quantize(tokens_of(groups, 64), MXFP8()), experts(groups, 32, 64)
    w = quantize(w, MXFP8((32, 32)))
    with pytest.raises(ValueError, match=r"alignment of .*128 for .*, got 32; make them by"):
        mx_grouped_matmul(x, w.mT, groups, backend=backend)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x, w, g: mx_grouped_matmul(x, w.mT, RowGroups((1,))), "a of 128 rows and b of 1"),
        (lambda x, w, g: mx_grouped_matmul(x, x.mT, g), r"expected b of \[groups, K, N\]"),
        (lambda x, w, g: mx_grouped_matmul(w, w.mT, g), r"expected a of \[rows, K\]"),
        (lambda x, w, g: mx_masked_matmul(x, w.mT, [1], expected=1), r"a of \[groups, room, K\]"),
        (lambda x, w, g: mx_masked_matmul(w, w.mT, [1], expected=1), "as many groups, got 1, 2"),
        (lambda x, w, g: mx_masked_matmul(w, w.mT, [1, 33], expected=1), "from 0 to 32, got"),
        (lambda x, w, g: mx_masked_matmul(w, w.mT, [1, 2], expected=0), "at least 1 row"),
        (lambda x, w, g: mx_grouped_weight_grad(x, x, g), "grad: expected blocks of 32 along rows"),
        (
            lambda x, w, g: mx_grouped_weight_grad(x, x, RowGroups((3, 5), 8)),
            "multiple of 32 for weight gradients, got 8",
        ),
        (
            lambda x, w, g: mx_grouped_linear(torch.ones(3, 64), torch.ones(2, 32, 64), g),
            r"expected x \[64, in\] and a weight \[2, out, in\], got \[3, 64\]",
        ),
        (
            lambda x, w, g: mx_grouped_linear(
                torch.ones(8, 64), torch.ones(2, 32, 64), RowGroups((3, 4), 4)
            ),
            "a block of 32 tokens would have rows of two groups",
        ),
    ],
)
def test_bad_input(call, text):
    groups = RowGroups((20, 30), 32)
    x = quantize(tokens_of(groups, 64), MXFP8())
    w = quantize(experts(groups, 32, 64), MXFP8((32, 32)))
    with pytest.raises(ValueError, match=text):
        call(x, w, groups)


def test_torch_has_no_masked_form(declare):
    from sshsdp_mxfp import BackendError

    declare((10, 0))
    a = quantize(torch.randn(2, 32, 64), MXFP8())
    with pytest.raises(BackendError, match=r'no masked form .*; use backend="reference"'):
        mx_masked_matmul(a, GemmOperand(a), [1, 2], expected=1, backend="torch")
