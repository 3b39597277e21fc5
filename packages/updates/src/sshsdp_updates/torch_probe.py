"""Finds out what an optimizer class keeps, and whether it treats every element on its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sshsdp_updates.rule import StateField
from sshsdp_updates.unit import ELEMENT, TENSOR

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Builds an optimizer over parameters."""

_SHAPE = (4, 6)
_PIECES = [5, 1, 18]  # sizes: less than a row, one element, several rows
_STEPS = 8  # RAdam takes another path from its sixth step on
_STEP = "step"


@dataclass(frozen=True, slots=True)
class TorchState:
    """What a class keeps of a parameter.

    Attributes:
        fields: all but the count of steps.
        counts: the type of the count of steps; None if there is none.
    """

    fields: tuple[StateField, ...]
    counts: type | None

    def count(self, steps: int) -> dict[str, Any]:
        """Return the entry of `steps` finished ones, if the class has one."""
        if self.counts is None:
            return {}
        return {_STEP: torch.tensor(float(steps)) if self.counts is Tensor else steps}


@dataclass(frozen=True, slots=True)
class _Trained:
    """A tensor after its steps, and its state before and after them."""

    weight: Tensor
    before: dict[str, Any]
    after: dict[str, Any]


def examine(title: str, make: Make) -> TorchState:
    """Train a matrix as a whole and in pieces, with an optimizer each, and compare.

    Raises:
        TypeError: the class can't, or the pieces come out differently.
    """
    start = torch.linspace(-2.0, 3.0, 24, dtype=torch.float64).view(_SHAPE)
    generator = torch.Generator().manual_seed(0)
    gradients = [
        torch.randn(_SHAPE, generator=generator, dtype=torch.float64) for _ in range(_STEPS)
    ]
    cut = [torch.split(tensor.view(-1), _PIECES) for tensor in (start, *gradients)]
    try:
        whole = _train(make, start, gradients)
        parts = [_train(make, first, rest) for first, *rest in zip(*cut, strict=True)]
    except Exception as error:  # whatever a class raises that needs more than a fragment
        raise _refusal(title, f"{type(error).__name__}: {error}") from error
    fields = tuple(
        _field(title, name, value, whole.before.get(name))
        for name, value in whole.after.items()
        if name != _STEP and value is not None
    )
    _compare(title, "weights", whole.weight, [part.weight for part in parts])
    for field in fields:
        values = [part.after.get(field.name) for part in parts]
        _compare(title, field.name, whole.after[field.name], values)
    count = whole.after.get(_STEP)
    if count is not None and float(count) != _STEPS:
        raise _refusal(title, f"a count of {float(count)} after {_STEPS} steps")
    kind = None if count is None else Tensor if isinstance(count, Tensor) else type(count)
    return TorchState(fields, kind)


def _train(make: Make, start: Tensor, gradients: Sequence[Tensor]) -> _Trained:
    parameter = nn.Parameter(start.clone())
    optimizer = make([parameter])
    before = {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in optimizer.state.get(parameter, {}).items()
    }
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return _Trained(parameter.detach(), before, dict(optimizer.state.get(parameter, {})))


def _field(title: str, name: str, value: Any, before: Any) -> StateField:
    """Describe what a class keeps under a name, given the value of the whole matrix."""
    if not isinstance(value, Tensor) or tuple(value.shape) not in ((), _SHAPE):
        shown = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise _refusal(title, f"{name} of shape {shown} beside a matrix")
    initial = 0.0 if before is None else float(before.reshape(-1)[0])
    if before is not None and bool((before != initial).any()):
        raise _refusal(title, f"{name} with several initial values")
    dtype = None if value.dtype is torch.float64 and value.dim() else value.dtype
    return StateField(name, dtype, ELEMENT if value.dim() else TENSOR, initial)


def _compare(title: str, name: str, whole: Tensor, parts: Sequence[Tensor | None]) -> None:
    expected = torch.split(whole.reshape(-1), _PIECES) if whole.dim() else [whole] * len(parts)
    for ours, part in zip(expected, parts, strict=True):
        if part is None or not torch.allclose(ours, part.reshape(ours.shape), 1e-9, 1e-12):
            raise _refusal(title, f"other {name} where a tensor is cut")


def _refusal(title: str, found: str) -> TypeError:
    return TypeError(
        f"expected an optimizer that treats every element on its own, got {title} ({found}); use "
        "AdamW, Muon or another rule of sshsdp_updates, or write one with stages over units"
    )
