"""Uses of a model beyond forward and backward: methods of its own, copies."""

import copy

import pytest
import torch
from integration.user_reports.comparison import agree, each_form, pieces
from packages.fsdp_runtime.tests.runtime.scenes import ids, on_ranks
from torch import nn
from torch.nn import functional


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4))
        self.layers = nn.ModuleList([nn.Linear(5, 3)])

    def forward(self, x):
        return self.layers[0](x @ self.weight.t())

    def gen(self, x):
        return functional.linear(x @ self.weight.t(), self.layers[0].weight)


@each_form
def test_a_method_that_skips_forward_has_its_weights_and_gradients(options):
    torch.manual_seed(0)
    model = Generator()
    x = torch.randn(2, 4)
    plain = copy.deepcopy(model)
    plain.gen(x).square().sum().backward()
    expected = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}

    def scene(_rank, ours):
        with torch.no_grad():
            first = ours.gen(x)
        ours.gen(x).square().sum().backward()
        local = {name: local for name, local in pieces(ours).items() if name in expected}
        ours.optimizer.step()
        with torch.no_grad():
            return first, local, ours.gen(x), ours.full_state_dict()

    for first, local, later, state in on_ranks(2, scene, model=model, **options):
        torch.testing.assert_close(first, plain.gen(x).detach())
        agree(local, expected)
        updated = Generator()
        updated.load_state_dict(state)
        torch.testing.assert_close(later, updated.gen(x).detach())


@each_form
def test_a_deep_copy_is_refused_with_what_to_do_instead(options):
    def scene(_rank, model):
        for part in (model, model.layers[0], model.gain):
            with pytest.raises(RuntimeError, match=r"got deepcopy.*full_state_dict\(\)"):
                copy.deepcopy(part)
        model(ids()).sum().backward()
        model.optimizer.step()

    on_ranks(2, scene, **options)
