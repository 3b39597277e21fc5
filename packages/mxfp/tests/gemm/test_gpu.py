"""On a real device: every backend that it has against float64."""

import pytest
import torch

from sshsdp_mxfp import (
    MXFP8,
    FP8Block128,
    GemmProblem,
    RowGroups,
    choose_gemm,
    mx_grouped_linear,
    mx_linear,
    probe_gemm,
)
from sshsdp_mxfp.gemm.choice import why_not

pytestmark = pytest.mark.gpu


def need(backend, *problems):
    able = probe_gemm(torch.device("cuda", torch.cuda.current_device()))
    for problem in problems:
        reason = why_not(backend, able, problem)
        if reason is not None:
            pytest.skip(reason)


def run(function, *tensors, dy, device, **options):
    """Output and gradients, on the CPU in float32."""
    leaves = [tensor.to(device).requires_grad_() for tensor in tensors]
    y = function(*leaves, **options)
    y.backward(dy.to(device))
    return [part.detach().float().cpu() for part in (y, *(leaf.grad for leaf in leaves))]


def close(results, expected):
    for result, wanted in zip(results, expected, strict=True):
        error = (result - wanted).norm() / wanted.norm()
        assert error < 2**-7, error


@pytest.mark.parametrize("tokens", [40, 1024])
@pytest.mark.parametrize("backend", ["reference", "torch", "deep_gemm"])
def test_linear(backend, tokens):
    need(backend, GemmProblem())
    x, weight = torch.randn(tokens, 512).bfloat16(), torch.randn(768, 512).bfloat16()
    dy = torch.randn(tokens, 768).bfloat16()
    results = run(mx_linear, x, weight, dy=dy, device="cuda", backend=backend)
    close(results, run(mx_linear, x, weight, dy=dy, device="cpu"))


@pytest.mark.parametrize("backend", ["reference", "torch", "deep_gemm"])
def test_experts(backend):
    need(backend, GemmProblem("grouped"), GemmProblem("k_grouped"))
    groups = RowGroups((200, 0, 128, 3))
    inside = (groups.row_indices() >= 0).unsqueeze(1)
    x = (torch.randn(groups.rows, 512) * inside).bfloat16()
    dy = (torch.randn(groups.rows, 256) * inside).bfloat16()
    weight = torch.randn(4, 256, 512).bfloat16()
    options = {"groups": groups, "dy": dy}
    results = run(mx_grouped_linear, x, weight, device="cuda", backend=backend, **options)
    close(results, run(mx_grouped_linear, x, weight, device="cpu", **options))
    assert not results[2][1].any()


@pytest.mark.parametrize("backend", ["reference", "deep_gemm"])
def test_block128(backend):
    need(backend, GemmProblem(blocks="fp8_block128"))
    x, weight = torch.randn(200, 512).bfloat16(), torch.randn(768, 512).bfloat16()
    dy, fmt = torch.randn(200, 768).bfloat16(), FP8Block128()
    results = run(mx_linear, x, weight, dy=dy, device="cuda", fmt=fmt, backend=backend)
    close(results, run(mx_linear, x, weight, dy=dy, device="cpu", fmt=fmt))


def test_automatic():
    device = torch.device("cuda", torch.cuda.current_device())
    choice = choose_gemm(probe_gemm(device))
    x, weight = torch.randn(64, 64, device=device), torch.randn(64, 64, device=device)
    y = mx_linear(x, weight, fmt=MXFP8())
    assert torch.equal(y, mx_linear(x, weight, fmt=MXFP8(), backend=choice.backend))
