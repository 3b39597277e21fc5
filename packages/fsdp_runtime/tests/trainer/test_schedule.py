"""The learning rate warms up, decays, and survives a resume."""

import pytest
import torch

from sshsdp_fsdp_runtime.trainer.config import OptimizerConfig
from sshsdp_fsdp_runtime.trainer.schedule import lr_factor, make_scheduler, restore_scheduler


def config(decay="cosine", warmup=4):
    return OptimizerConfig(lr=0.5, warmup_steps=warmup, decay=decay, final_lr_fraction=0.2)


def rates(scheduler, optimizer, count):
    found = []
    for _ in range(count):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def make(steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    return make_scheduler(optimizer, steps, config()), optimizer


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("constant", [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.25, 0.5, 0.75, 1, 1, 0.8, 0.6, 0.4, 0.2]),
        ("cosine", [0.25, 0.5, 0.75, 1, 1, 0.882843, 0.6, 0.317157, 0.2]),
    ],
)
def test_factors_by_hand(decay, expected):
    factors = [lr_factor(step, 9, config(decay)) for step in range(9)]
    assert factors == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("steps", [1, 3, 4, 5])
@pytest.mark.parametrize("warmup", [0, 4])
def test_runs_as_short_as_their_warm_up_have_a_rate(steps, warmup):
    assert all(0 < lr_factor(step, steps, config(warmup=warmup)) <= 1 for step in range(steps))


def test_the_scheduler_applies_the_factors():
    scheduler, optimizer = make(9)
    expected = [0.5 * lr_factor(step, 9, config()) for step in range(9)]
    assert rates(scheduler, optimizer, 9) == pytest.approx(expected)


def test_a_resumed_scheduler_goes_on_where_it_stopped():
    scheduler, optimizer = make(9)
    whole = rates(scheduler, optimizer, 9)
    first, optimizer = make(9)
    rates(first, optimizer, 5)
    second, optimizer = make(9)
    restore_scheduler(second, first.state_dict(), 9, config())
    assert rates(second, optimizer, 4) == whole[5:]


def test_a_resumed_scheduler_follows_a_new_number_of_steps():
    first, optimizer = make(9)
    rates(first, optimizer, 5)
    second, optimizer = make(19)
    restore_scheduler(second, first.state_dict(), 19, config())
    expected = [0.5 * lr_factor(step, 19, config()) for step in (5, 6)]
    assert rates(second, optimizer, 2) == pytest.approx(expected)
