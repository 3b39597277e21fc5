"""Elementwise classes of torch.optim train a sharded model as they train a plain one."""

import copy
from functools import cache

import pytest
import torch
from testing.models import TiedModel
from testing.ranks import run_ranks
from torch import optim

from sshsdp_fsdp_runtime import Sharding, Update
from sshsdp_fsdp_runtime.checkpoint import load_checkpoint, save_checkpoint
from sshsdp_shardchain import Degrees
from sshsdp_updates import TorchRule

from .scenes import ids, sharded

CLASSES = {
    "adadelta": (optim.Adadelta, {"lr": 0.5}),
    "adagrad": (optim.Adagrad, {"lr": 0.05, "initial_accumulator_value": 0.2}),
    "adamax": (optim.Adamax, {"lr": 0.02, "weight_decay": 0.1}),
    "asgd": (optim.ASGD, {"lr": 0.1, "t0": 2.0}),
    "nadam": (optim.NAdam, {"lr": 0.02, "momentum_decay": 0.1}),
    "radam": (optim.RAdam, {"lr": 0.02}),
    "rmsprop": (optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.5}),
    "rprop": (optim.Rprop, {"lr": 0.01}),
}
STEPS, SAVED = 7, 3


def fresh():
    torch.manual_seed(0)
    return TiedModel().double()


def losses_of(model, step, ranks):
    """Of other tokens on every rank; the gain is not used in every step."""
    for rank in ranks:
        scores = model(ids(10 * step + rank)) * (1.0 if step % 2 else model.gain.sum())
        yield scores.logsumexp(-1).mean()


@cache
def plain(case, world):
    """Weights after every step, of one process that has the data of all ranks."""
    kind, options = CLASSES[case]
    model = fresh()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = kind(trained, **options)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    history = []
    for step in range(STEPS):
        (sum(losses_of(model, step, range(world))) / world).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        history.append(copy.deepcopy(model.state_dict()))
    return history


def options_of(case, degrees):
    kind, options = CLASSES[case]
    return {
        "sharding": [Sharding("**", degrees)],
        "updates": [Update("**", TorchRule(kind, **options))],
    }


def train(model, schedule, steps, ranks, share=1):
    """Weights after every step, with the data of these ranks on this one."""
    history = []
    for step in steps:
        for loss in losses_of(model, step, ranks):
            (loss / share).backward()
        model.optimizer.step()
        model.optimizer.zero_grad()
        schedule.step()
        history.append({name: value.clone() for name, value in model.full_state_dict().items()})
    return history


def train_and_save(rank, cases, degrees, folder):
    found = {}
    for case in cases:
        with sharded(rank, fresh(), **options_of(case, degrees)) as model:
            schedule = optim.lr_scheduler.ExponentialLR(model.optimizer, 0.9)
            found[case] = train(model, schedule, range(SAVED), [rank.rank])
            save_checkpoint(folder / case, model, {"schedule": schedule.state_dict()})
            found[case] += train(model, schedule, range(SAVED, STEPS), [rank.rank])
    return found


def load_and_train(rank, cases, degrees, folder, world):
    """Go on with the data of all ranks of the old world on every rank of the new one."""
    found = {}
    for case in cases:
        with sharded(rank, TiedModel().double(), **options_of(case, degrees)) as model:
            schedule = optim.lr_scheduler.ExponentialLR(model.optimizer, 0.9)
            extra = load_checkpoint(folder / case, model)
            schedule.load_state_dict(extra["schedule"])
            found[case] = train(model, schedule, range(SAVED, STEPS), range(world), world)
    return found


def assert_close(results, expected):
    for found in results:
        for ours, theirs in zip(found, expected, strict=True):
            for name, value in theirs.items():
                torch.testing.assert_close(ours[name], value, rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize(
    ("degrees", "cases", "new"),
    [
        (Degrees(1, 1, 1), ("nadam",), Degrees(1, 1, 1)),
        (Degrees(1, 1, 2), ("adagrad", "nadam"), Degrees(1, 1, 1)),
        (Degrees(3, 3, 3), ("asgd", "radam", "rmsprop"), Degrees(1, 2, 2)),
        pytest.param(Degrees(3, 3, 3), tuple(CLASSES), Degrees(1, 2, 2), marks=pytest.mark.full),
    ],
    ids=lambda value: str(value) if isinstance(value, Degrees) else "",
)
def test_weights_equal_those_of_plain_pytorch_and_training_goes_on_in_another_world(
    degrees, cases, new, tmp_path
):
    world = degrees.zero1
    first = run_ranks(train_and_save, world, cases, degrees, tmp_path, timeout=120)
    second = run_ranks(load_and_train, new.zero1, cases, new, tmp_path, world, timeout=120)
    for case in cases:
        assert_close([found[case] for found in first], plain(case, world))
        assert_close([found[case] for found in second], plain(case, world)[SAVED:])


@pytest.mark.parametrize("case", ["nadam", "rprop"])
def test_the_forecast_counts_what_a_class_keeps_per_element_and_per_tensor(case):
    def scene(rank):
        with sharded(rank, fresh(), **options_of(case, Degrees(1, 1, 2))) as model:
            rows = {row.role: row.local for row in model.plan.forecast().rows}
            kept = [
                tensor.untyped_storage()
                for state in model.optimizer.state.values()
                for name, tensor in state.items()
                if name != "step"
            ]
            return rows["optimizer state"], sum(
                {s.data_ptr(): s.nbytes() for s in kept if s.nbytes()}.values()
            )

    for planned, found in run_ranks(scene, 2):
        assert planned == found
