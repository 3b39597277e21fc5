"""Layers, plain and packed, and what is looked at when their members are called."""

import copy
from dataclasses import astuple

import torch
from testing.ledger import Ledger
from torch import nn

from sshsdp_fsdp_runtime import Pack, fully_shard

COLUMNS, ROWS = 5, {"a": 6, "b": 2, "c": 3}
TOTAL = sum(ROWS.values())
OPERAND, BIASES = TOTAL * COLUMNS * 8, TOTAL * 8  # bytes


class Holder(nn.Module):
    """Three layers; `use` says what is done with them."""

    def __init__(self, bias=True):
        super().__init__()
        self.layers = nn.ModuleDict({n: nn.Linear(COLUMNS, r, bias) for n, r in ROWS.items()})

    def forward(self, x, use):
        return use(self.layers, x)


def pair(bias=True, **options):
    """The same layers, plain and packed."""
    torch.manual_seed(0)
    plain = Holder(bias).double()
    return plain, fully_shard(copy.deepcopy(plain), packs=[Pack("layers", list(ROWS))], **options)


def inputs(requires_grad=True):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, COLUMNS, dtype=torch.float64, generator=generator)
    return x.requires_grad_(requires_grad)


def calls(model):
    """Fused and sliced calls, forward and backward."""
    [counted] = model.pack_calls().values()
    return astuple(counted)


def together(layers, x):
    return torch.cat([layers[name](x) for name in "abc"], -1).square()


def apart(layers, x):
    return sum((layers[name](x) * (index + 1)).tanh().sum() for index, name in enumerate("bca"))


def check_same(plain, packed, use, passes=2):
    """Outputs, and gradients of inputs and parameters, of some passes."""
    inner, outer = inputs(), inputs()
    for _ in range(passes):
        expected, found = plain(outer, use), packed(inner, use)
        torch.testing.assert_close(found, expected)
        expected.sum().backward()
        found.sum().backward()
    check_gradients(plain, packed)
    torch.testing.assert_close(inner.grad, outer.grad)


def check_gradients(plain, packed):
    packed.finalize_gradients()
    shown = dict(packed.named_parameters())
    for name, parameter in plain.named_parameters():
        used = packed._sharded.gradients.used(name)
        assert used == (parameter.grad is not None)
        if used:
            ours = shown[name].grad.local.view(parameter.shape)
            torch.testing.assert_close(ours, parameter.grad, rtol=1e-12, atol=1e-13)


def ledger_of(model):
    pack = model._sharded.packs[0]
    ranges = {"weights": pack._weight.value, "gradients": pack._weight.gradient}
    return Ledger({**ranges, "biases": pack._bias.gradient})
