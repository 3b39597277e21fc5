"""A small model trains to the loss of FP32, and doesn't where scales are wrong."""

import pytest
import torch
from torch import nn

from sshsdp_mxfp import MXFP8, FP8Block128, MXLinear
from sshsdp_mxfp.gemm.plan import MXPlan
from sshsdp_mxfp.tensor import MXTensor

STEPS = 60
BOUND = 0.05  # of the loss of FP32, relative


def train(replace):
    """The mean loss of the last steps of a classifier of noisy clusters."""
    torch.manual_seed(0)
    layers = [nn.Linear(128, 256), nn.Linear(256, 256), nn.Linear(256, 128)]
    first, second, last = (replace(layer) for layer in layers)
    model = nn.Sequential(first, nn.GELU(), second, nn.GELU(), last)
    centers = torch.randn(128, 128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(STEPS):
        labels = torch.randint(0, 128, (128,))
        x = centers[labels] + 2.0 * torch.randn(128, 128)
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-10:]) / 10


@pytest.fixture(scope="module")
def plain():
    return train(lambda layer: layer)


def test_the_task_is_learned(plain):
    assert plain < 0.7 * 4.85  # of the logarithm of 128 classes


@pytest.mark.parametrize("fmt", [MXFP8(), FP8Block128()])
def test_the_loss_of_fp32(fmt, plain):
    loss = train(lambda layer: MXLinear.from_linear(layer, fmt=fmt))
    assert abs(loss - plain) <= BOUND * plain


def test_wrong_scales_break_the_bound(plain, monkeypatch):
    real = MXPlan.quantize

    def broken(self, x, **options):
        results = real(self, x, **options)
        for result in results:
            if isinstance(result, MXTensor):
                result.scale_codes.copy_(result.scale_codes.roll(1, -1))
        return results

    monkeypatch.setattr(MXPlan, "quantize", broken)
    loss = train(MXLinear.from_linear)
    assert not abs(loss - plain) <= BOUND * plain
