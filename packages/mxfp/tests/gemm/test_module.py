"""MXLinear behaves as torch.nn.Linear, and quantizes a weight as often as it has to."""

import copy
import pickle

import pytest
import torch
from torch import nn

from sshsdp_mxfp import MXFP8, FP8Block128, MXLinear, mx_linear, reuse_weights
from sshsdp_mxfp.gemm import module


@pytest.fixture
def quantized(monkeypatch):
    """Weights that were quantized by layers that reuse them."""
    seen, real = [], module.quantize_weight
    monkeypatch.setattr(module, "quantize_weight", lambda w, fmt: seen.append(w) or real(w, fmt))
    return seen


def test_the_function_with_its_own_parameters():
    layer, x = MXLinear(64, 32), torch.randn(5, 64)
    assert torch.equal(layer(x), mx_linear(x, layer.weight, layer.bias))
    assert MXLinear(64, 32, bias=False).bias is None


def test_state_moves_to_and_from_a_plain_layer():
    plain = nn.Linear(64, 32)
    layer = MXLinear(64, 32)
    layer.load_state_dict(plain.state_dict())
    assert torch.equal(layer.weight, plain.weight)
    assert list(layer.state_dict()) == list(plain.state_dict())
    shared = MXLinear.from_linear(plain)
    assert shared.weight is plain.weight
    assert shared.bias is plain.bias


def test_without_reuse_every_change_of_a_weight_counts():
    layer, x = MXLinear(32, 32), torch.randn(4, 32)
    layer(x)
    layer.weight.data.mul_(2)  # leaves no trace
    assert torch.equal(layer(x), mx_linear(x, layer.weight, layer.bias))


def test_a_weight_is_quantized_once_for_all_microbatches(quantized):
    model = nn.Sequential(MXLinear(32, 64), nn.ReLU(), MXLinear(64, 32))
    x = torch.randn(3, 4, 32)
    for part in x:
        model(part).sum().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with reuse_weights(model):
        for part in x:
            model(part).sum().backward()
    assert len(quantized) == 2
    for parameter, grad in zip(model.parameters(), wanted, strict=True):
        assert torch.equal(parameter.grad, grad)


def test_after_the_block_weights_are_read_again(quantized):
    layer, x = MXLinear(32, 32), torch.randn(4, 32)
    for _ in range(2):
        with reuse_weights(layer), reuse_weights(layer):
            layer(x)
        with torch.no_grad():
            layer.weight.mul_(2)
    assert len(quantized) == 2
    assert torch.equal(layer(x), mx_linear(x, layer.weight, layer.bias))


def test_a_weight_that_is_written_to_inside_of_the_block():
    layer, x = MXLinear(32, 32), torch.randn(4, 32)
    with reuse_weights(layer):
        layer(x).sum().backward()
        torch.optim.SGD(layer.parameters(), lr=1.0, foreach=False).step()
        with pytest.raises(RuntimeError, match="leave the block before the optimizer steps"):
            layer(x)


def test_the_block_ends_with_an_exception():
    layer = MXLinear(32, 32)
    with pytest.raises(ValueError, match="expected x"), reuse_weights(layer):
        layer(torch.randn(1, 31))
    assert layer._held is None
    assert not layer._reuses


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_do_not_take_quantized_weights_along(copied):
    layer = MXLinear(32, 32)
    with reuse_weights(layer):
        layer(torch.randn(1, 32))
        other = copied(layer)
    assert other._held is None
    assert not other._reuses
    assert torch.equal(other.weight, layer.weight)


def test_inference_mode():
    with torch.inference_mode():
        layer = MXLinear(32, 32)
        with reuse_weights(layer):
            assert layer(torch.randn(2, 32)).shape == (2, 32)


@pytest.mark.parametrize(
    ("sizes", "fmt", "text"),
    [
        ((40, 32), MXFP8(), "in_features to be a multiple of 32 .*, got 40; pad it to 64"),
        ((32, 33), MXFP8(), "out_features to be a multiple of 32 .*, got 33; pad it to 64"),
        ((128, 96), FP8Block128(), "out_features to be a multiple of 128 .*, got 96"),
    ],
)
def test_sizes(sizes, fmt, text):
    with pytest.raises(ValueError, match=text):
        MXLinear(*sizes, fmt=fmt)


def test_it_says_its_format():
    assert "e4m3 in blocks of 1x32" in repr(MXLinear(32, 32))
    assert "backend='reference'" in repr(MXLinear(32, 32, backend="reference"))
