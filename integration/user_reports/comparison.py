"""The same training twice: on plain PyTorch with all ranks' data, and sharded over the ranks."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from packages.fsdp_runtime.tests.runtime.scenes import on_ranks
from torch import nn

POISONED = {"form": "private", "poison": True}
each_form = pytest.mark.parametrize(
    "options", [{"form": "shared"}, POISONED], ids=["shared", "private"]
)

Loss = Callable[[nn.Module, int, int], torch.Tensor]  # of a model, a step and a rank
Values = dict[str, torch.Tensor]


def values(model: Any) -> Values:
    """A sharded model's full values now, by name."""
    return {name: value.clone() for name, value in model.full_state_dict().items()}


def unequal(one: Values, other: Values) -> list[str]:
    """Names of values that differ in any bit."""
    return [name for name in one if not torch.equal(one[name], other[name])]


def pieces(model: nn.Module) -> dict[str, tuple[int, torch.Tensor]]:
    """This rank's pieces of gradients, by name: where they begin, and their values."""
    grads: dict[str, Any] = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {name: (grad.fragment.start, grad.local.clone()) for name, grad in grads.items()}


def agree(
    local: Mapping[str, tuple[int, torch.Tensor]],
    expected: Mapping[str, torch.Tensor | None],
    **tolerance: float,
) -> None:
    """Pieces of gradients are those of whole gradients."""
    for name, (start, piece) in local.items():
        gradient = expected[name]
        assert gradient is not None, name
        whole = gradient.flatten().to(piece.dtype)
        torch.testing.assert_close(piece, whole[start : start + piece.numel()], **tolerance)


def gradients(model: nn.Module, world: int, *losses: Loss) -> dict[str, torch.Tensor | None]:
    """Means over ranks of plain gradients, losses of several microbatches added."""
    plain = copy.deepcopy(model)
    for step, loss in enumerate(losses):
        for rank in range(world):
            (loss(plain, step, rank) / world).backward()
    return {name: parameter.grad for name, parameter in plain.named_parameters()}


def trained(
    model: nn.Module,
    world: int,
    loss: Loss,
    optimizer: Callable[..., torch.optim.Optimizer],
    steps: int = 3,
) -> list[Values]:
    """Values after each step of a plain copy of `model`."""
    plain = copy.deepcopy(model)
    update = optimizer(plain.parameters())
    seen = []
    for step in range(steps):
        for rank in range(world):
            (loss(plain, step, rank) / world).backward()
        update.step()
        update.zero_grad()
        seen.append({name: value.clone() for name, value in plain.state_dict().items()})
    return seen


def sharded(
    model: nn.Module, world: int, loss: Loss, steps: int = 3, **options: Any
) -> list[list[Values]]:
    """Per rank the values after each step of a sharded copy of `model`."""

    def scene(rank: Any, ours: Any) -> list[Values]:
        seen = []
        for step in range(steps):
            loss(ours, step, rank.rank).backward()
            ours.optimizer.step()
            ours.optimizer.zero_grad()
            seen.append(values(ours))
        return seen

    return on_ranks(world, scene, model=model, **options)


def same_training(ours: list[list[Values]], plain: list[Values]) -> None:
    """Every rank has the plain values after every step, to ten digits."""
    for steps in ours:
        for mine, wanted in zip(steps, plain, strict=True):
            assert sorted(mine) == sorted(wanted)
            for name, value in wanted.items():
                torch.testing.assert_close(mine[name], value, rtol=1e-10, atol=1e-12)
