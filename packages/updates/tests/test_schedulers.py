"""torch's learning-rate schedulers drive it as they drive torch.optim."""

import pytest
import torch
from torch.optim import lr_scheduler as schedules

from sshsdp_updates import SGD, AdamW

STEPS = 12


def warmup_then_cosine(optimizer):
    return schedules.SequentialLR(
        optimizer,
        [
            schedules.LinearLR(optimizer, start_factor=0.1, total_iters=3),
            schedules.CosineAnnealingLR(optimizer, T_max=8),
        ],
        milestones=[3],
    )


SCHEDULES = {
    "linear": lambda o: schedules.LinearLR(o, start_factor=0.1, total_iters=5),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, T_max=STEPS),
    "sequential": warmup_then_cosine,
    "lambda": lambda o: schedules.LambdaLR(o, lambda epoch: 0.9**epoch),
    "one_cycle": lambda o: schedules.OneCycleLR(o, max_lr=0.2, total_steps=STEPS),
    "cyclic": lambda o: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=4, cycle_momentum=False),
}
RULES = {
    "adamw": (AdamW(lr=0.1), lambda p: torch.optim.AdamW(p, lr=0.1)),
    "sgd": (SGD(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
}


def train(optimizer, scheduler, set_gradient):
    random = torch.Generator().manual_seed(1)
    rates = []
    for _ in range(STEPS):
        set_gradient(torch.randn(20, generator=random, dtype=torch.float64))
        optimizer.step()
        scheduler.step()
        rates.append(scheduler.get_last_lr())
    return rates


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_same_schedule_gives_the_same_weights_as_torch(cluster, schedule, rule):
    start = torch.linspace(-1, 1, 20, dtype=torch.float64)
    mine, oracle = RULES[rule]
    ours = cluster([(mine, {"w": start})])
    whole = torch.nn.Parameter(start.clone())
    theirs = oracle([whole])
    rates = train(
        ours.optimizers[0],
        SCHEDULES[schedule](ours.optimizers[0]),
        lambda gradient: ours.set_gradients({"w": gradient}, {"w": 20}),
    )
    expected = train(
        theirs, SCHEDULES[schedule](theirs), lambda gradient: setattr(whole, "grad", gradient)
    )
    assert rates == expected
    torch.testing.assert_close(ours.weight("w", 20), whole.detach(), rtol=1e-12, atol=1e-12)


def test_each_rule_has_its_own_schedule(cluster):
    ours = cluster([(SGD(lr=1.0), {"a": torch.zeros(3)}), (SGD(lr=1.0), {"b": torch.zeros(3)})])
    (optimizer,) = ours.optimizers
    scheduler = schedules.LambdaLR(optimizer, [lambda epoch: 1.0**epoch, lambda epoch: 0.0**epoch])
    for _ in range(2):
        ours.set_gradients({"a": torch.ones(3), "b": torch.ones(3)}, {"a": 3, "b": 3})
        optimizer.step()
        scheduler.step()
    assert torch.equal(ours.weight("a", 3), torch.full((3,), -2.0))
    assert torch.equal(ours.weight("b", 3), torch.full((3,), -1.0))


def test_a_tensor_as_learning_rate_follows_its_schedule_and_leaves_the_rule(cluster):
    rule = SGD(lr=torch.tensor(1.0))
    ours = cluster([(rule, {"a": torch.zeros(3)})])
    (optimizer,) = ours.optimizers
    scheduler = schedules.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    for _ in range(2):
        ours.set_gradients({"a": torch.ones(3)}, {"a": 3})
        optimizer.step()
        scheduler.step()
    assert torch.equal(ours.weight("a", 3), torch.full((3,), -1.5))
    assert rule.lr == 1.0


def test_momentum_cannot_be_scheduled_into_a_rule_without_a_buffer(cluster):
    ours = cluster([(SGD(lr=0.1), {"a": torch.zeros(3)})])
    ours.set_gradients({"a": torch.ones(3)}, {"a": 3})
    ours.optimizers[0].param_groups[0]["momentum"] = 0.9
    with pytest.raises(ValueError, match=r"a momentum of 0, .*keeps no buffer, got momentum=0\.9"):
        ours.optimizers[0].step()
