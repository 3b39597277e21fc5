"""State, first steps and hyperparameters of the optimizer."""

from functools import partial

import pytest
import torch
from integration.user_reports.comparison import (
    each_form,
    same_training,
    sharded,
    trained,
    unequal,
    values,
)
from packages.fsdp_runtime.tests.runtime.scenes import ids, on_ranks
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from sshsdp_fsdp_runtime import Update, fully_shard
from sshsdp_fsdp_runtime.checkpoint import load_checkpoint, save_checkpoint
from sshsdp_updates import SGD, AdamW, TorchRule


@each_form
def test_an_optimizer_that_is_taken_after_a_forward_updates_the_weights(options):
    torch.manual_seed(0)
    model = nn.Linear(4, 4).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    (after,) = trained(
        model,
        2,
        lambda model, _step, rank: model(x[rank]).square().sum(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        steps=1,
    )

    def scene(rank, ours):
        loss = ours(x[rank.rank]).square().sum()
        optimizer = ours.optimizer
        loss.backward()
        optimizer.step()
        return [values(ours)]

    updates = [Update("**", SGD(lr=0.1))]
    same_training(on_ranks(2, scene, model=model, updates=updates, **options), [after])


@pytest.mark.parametrize("way", ["foreach", "fused", "one by one"])
@pytest.mark.parametrize("early", [False, True], ids=["late", "before sharding"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_of_torch_over_the_parameters_is_an_error_instead_of_standing_still(
    kind, early, way
):
    model = nn.Linear(4, 4)
    options = {"lr": 0.1, "foreach": way == "foreach", "fused": way == "fused", "weight_decay": 0.1}
    theirs = kind(model.parameters(), **options) if early else None
    model = fully_shard(model)
    theirs = theirs or kind(model.parameters(), **options)
    before = values(model)
    model(torch.ones(1, 4)).sum().backward()
    with pytest.raises(RuntimeError, match=r"model\.optimizer"):
        theirs.step()
    assert unequal(before, values(model)) == []
    model.close()


@pytest.mark.parametrize("rule", [AdamW(weight_decay=0.0), SGD(momentum=0.9)], ids=["adamw", "sgd"])
def test_a_zero_gradient_at_the_first_step_leaves_weights_as_they_are(rule):
    def scene(_rank, model):
        before = values(model)
        (0 * model(ids())).sum().backward()
        norm = model.optimizer.clip_grad_norm_(1.0)
        model.optimizer.step()
        return norm.item(), unequal(before, values(model)), model.optimizer.last_step_skipped

    assert on_ranks(2, scene, updates=[Update("**", rule)]) == [(0.0, [], False)] * 2


@pytest.mark.parametrize(
    ("rule", "theirs"),
    [(AdamW, torch.optim.AdamW), (partial(TorchRule, torch.optim.Adam), torch.optim.Adam)],
    ids=["adamw", "adam"],
)
def test_the_first_real_step_is_the_first_step(rule, theirs):
    """State exists from the start, yet no bias correction, decay or moment is ahead of torch's."""
    torch.manual_seed(0)
    model = nn.Linear(2, 2).double()
    x = torch.randn(2, 2, 5, 2, dtype=torch.float64)
    options = {"lr": 0.01, "weight_decay": 0.1}

    def loss(model, step, rank):
        return model(x[step, rank]).square().mean()

    ours = sharded(model, 2, loss, steps=2, updates=[Update("**", rule(**options))])
    same_training(ours, trained(model, 2, loss, partial(theirs, **options), steps=2))


def test_a_parameter_without_gradient_takes_no_step():
    def scene(_rank, model):
        before = values(model)
        for _ in range(2):
            model(ids()).square().sum().backward()
            model.optimizer.step()
            model.optimizer.zero_grad()
        changed = unequal(before, values(model))
        return model.checkpoint_scalars()["step"], changed

    for steps, changed in on_ranks(2, scene):
        idle = {name for name, step in steps.items() if step == 0}
        assert idle == {f"layers.{i}.{name}" for i in range(3) for name in ("unused", "empty")}
        assert set(steps.values()) == {0, 2}
        assert idle.isdisjoint(changed)


class Three(nn.Module):
    """Of three groups of parameters the one in the middle has no element."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.ones(4))
        self.middle = nn.Parameter(torch.ones(0, 4))
        self.last = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return (x * self.first * self.last).sum() + self.middle.sum()


def test_hyperparameters_of_all_groups_come_back_when_one_is_empty(tmp_path):
    wanted = [(1e-2, (0.8, 0.9)), (2e-2, (0.85, 0.9)), (3e-2, (0.87, 0.9))]
    names = ("first", "middle", "last")

    def rules(scale):
        return [
            Update(name, AdamW(lr=scale * lr, betas=betas))
            for name, (lr, betas) in zip(names, wanted, strict=True)
        ]

    def train(model):
        model(torch.arange(4.0)).backward()
        model.optimizer.step()
        model.optimizer.zero_grad()

    def save(_rank, model):
        scheduler = LambdaLR(model.optimizer, lambda step: 0.5**step)
        for _ in range(2):
            train(model)
            scheduler.step()
        save_checkpoint(tmp_path / "saved", model, {})
        train(model)
        return values(model)

    def load(_rank, model):
        load_checkpoint(tmp_path / "saved", model)
        seen = [(group["lr"], group["betas"]) for group in model.optimizer.param_groups]
        train(model)
        return seen, values(model)

    reference, *_ = on_ranks(2, save, model=Three(), updates=rules(1))
    for seen, after in on_ranks(3, load, model=Three(), updates=rules(7)):
        assert seen == [(lr / 4, betas) for lr, betas in wanted]
        assert unequal(reference, after) == []
