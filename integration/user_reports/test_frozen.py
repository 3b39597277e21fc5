"""Frozen weights beside trainable ones."""

import copy

import pytest
import torch
from integration.user_reports.comparison import each_form, same_training, unequal, values
from packages.fsdp_runtime.tests.runtime.scenes import on_ranks
from torch import nn

from sshsdp_fsdp_runtime import Update
from sshsdp_updates import AdamW


class Adapted(nn.Module):
    """A frozen BF16 layer with trainable FP32 adapters of rank 4."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(64, 64, dtype=torch.bfloat16).requires_grad_(False)
        self.down = nn.Linear(64, 4, bias=False)
        self.up = nn.Linear(4, 64, bias=False)

    def forward(self, x):
        return self.base(x.to(self.base.weight.dtype)).to(x.dtype) + self.up(self.down(x))


@each_form
def test_frozen_weights_get_no_copy_no_gradient_and_no_state(options):
    adapters = 2 * 4 * 64 * 4  # bytes

    def scene(_rank, model):
        before = values(model)
        for _ in range(2):
            model(torch.ones(3, 64)).square().sum().backward()
            model.optimizer.step()
            model.optimizer.zero_grad()
        frozen, trainable = model.plan.atoms
        own = model._sharded.buffers.atoms[frozen.name]
        bytes_ = {row.role: row.local for row in model.plan.forecast().rows}
        return (
            (frozen.weight_dtype, frozen.main_dtype, trainable.weight_dtype),
            (own.main_weight, own.main_grad, own.gradients),
            bytes_,
            sorted(model.optimizer.state_dict()["state"]),
            unequal(before, values(model)),
            model.base.weight.grad,
        )

    for dtypes, buffers, bytes_, state, changed, grad in on_ranks(
        2, scene, model=Adapted(), **options
    ):
        assert dtypes == (torch.bfloat16, None, torch.float32)
        assert buffers == (None, None, None)
        assert bytes_["gradient slots"] == adapters
        assert bytes_["gradient sums"] == adapters // 2
        assert bytes_["main weights"] == 0
        assert bytes_["optimizer state"] == 2 * adapters // 2
        assert sorted(state) == sorted(changed) == ["down.weight", "up.weight"]
        assert grad is None


@each_form
def test_a_base_that_is_frozen_for_a_while_and_then_unfrozen_trains_on(options):
    torch.manual_seed(0)
    model = Adapted().double()
    model.base.requires_grad_(True)
    x = torch.randn(4, 2, 3, 64, dtype=torch.float64)

    def train(model, optimizer, ranks):
        after = []
        for step in range(4):
            model.base.requires_grad_(step >= 2)
            for rank in ranks:
                (model(x[step, rank]).square().mean() / len(ranks)).backward()
            optimizer.step()
            optimizer.zero_grad()
            after.append(values(model) if hasattr(model, "full_state_dict") else copied(model))
        return after

    def copied(model):
        return {name: value.clone() for name, value in model.state_dict().items()}

    def scene(rank, ours):
        return train(ours, ours.optimizer, [rank.rank])

    plain = copy.deepcopy(model)
    expected = train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), [0, 1])
    assert torch.equal(expected[1]["base.weight"], model.base.weight)
    updates = [Update("**", AdamW(lr=1e-2))]
    same_training(on_ranks(2, scene, model=model, updates=updates, **options), expected)


def test_weights_frozen_before_and_unfrozen_later_are_an_error_instead_of_standing_still():
    def scene(_rank, model):
        model.base.weight.requires_grad_(True)
        with pytest.raises(RuntimeError, match=r"'base\.weight'.*before fully_shard"):
            model(torch.ones(3, 64))

    on_ranks(1, scene, model=Adapted())
