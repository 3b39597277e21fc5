"""An update rule as data: hyperparameters, state, stages."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, ClassVar

import torch

from sshsdp_updates.stage import Stage
from sshsdp_updates.unit import ELEMENT, Unit


@dataclass(frozen=True, slots=True)
class StateField:
    """One value that a rule keeps between steps.

    Attributes:
        name: its key in ``optimizer.state`` and in state dicts.
        dtype: None means the dtype of the main weights.
        unit: ELEMENT, sharded as the weights are, or ROW or TENSOR, complete on every rank. TENSOR
            is for rules all of whose stages are over elements.
        initial: before the first step.
    """

    name: str
    dtype: torch.dtype | None = None
    unit: Unit = ELEMENT
    initial: float = 0.0


@dataclass(frozen=True, slots=True)
class Temporary:
    """One value that lives from the stage that writes it to the end of the step.

    Attributes:
        name: as operands say it.
        dtype: None means the dtype of the main weights.
        unit: ELEMENT or ROW.
    """

    name: str
    dtype: torch.dtype | None = None
    unit: Unit = ELEMENT


@dataclass(frozen=True)
class UpdateRule(ABC):
    """A rule says what one step does to a tensor, and nothing about how tensors are distributed.

    Subclasses are frozen dataclasses whose fields are the hyperparameters. The *instance* is the
    param group: members that share a rule object share hyperparameters and schedules.
    """

    name: ClassVar[str]

    @staticmethod
    def expect(value: object, where: str) -> "UpdateRule":
        """Return `value` if it is a rule.

        Args:
            value: what a caller gave as one.
            where: what it was given to, for the message.

        Raises:
            TypeError: it is something else; the text says what to give.
        """
        if isinstance(value, UpdateRule):
            return value
        kind = value if isinstance(value, type) else type(value)
        torchs = kind.__module__.startswith("torch.optim.")
        title = f"torch.optim.{kind.__name__}" if torchs else kind.__qualname__
        shown = f"{'the class' if kind is value else 'an object of'} {title}"
        advice = "give a rule of sshsdp_updates, such as AdamW(...), SGD(...) or Muon(...)"
        if issubclass(kind, torch.optim.Optimizer):
            advice += f", or TorchRule({title}, ...), which runs the code of that class"
        elif issubclass(kind, UpdateRule):
            advice = f"make one: {kind.__name__}(...)"
        raise TypeError(f"{where}: expected an update rule, got {shown}; {advice}")

    def hyperparameters(self) -> dict[str, Any]:
        """Return the initial values of the param group, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @abstractmethod
    def state_fields(self) -> tuple[StateField, ...]:
        """Return what is kept between steps; the count of steps is kept for every rule."""

    def temporaries(self) -> tuple[Temporary, ...]:
        """Return what stages hand to later stages of the same step."""
        return ()

    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """Return the stages in the order in which they run."""

    @abstractmethod
    def validate(self, hyperparameters: Mapping[str, Any]) -> None:
        """Check values before they are used: at construction, and at every step.

        Raises:
            ValueError: naming the hyperparameter and its legal values.
        """

    def check_unit(self, shape: tuple[int, ...]) -> None:  # noqa: B027 - most rules take any
        """Check the shape of a unit when a plan is made.

        Raises:
            ValueError: the rule cannot work on it.
        """

    def unit_cost(self, shape: tuple[int, ...]) -> int:
        """Return how expensive the stages over units are for one unit; balances the ranks."""
        return math.prod(shape)

    def unit_scratch(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:  # noqa: ARG002
        """Return the bytes that the stages over units allocate for one unit while they run.

        Args:
            shape: of the unit.
            dtype: of the main weights.
        """
        return 0

    def element_scratch(self, dtype: torch.dtype) -> int:  # noqa: ARG002
        """Return the bytes that stages over elements allocate for each while they run.

        Args:
            dtype: of the main weights.
        """
        return 0


def require(condition: bool, expected: str, name: str, value: object) -> None:
    """Raise ValueError unless `condition` holds, which also is how a NaN is caught."""
    if not condition:
        raise ValueError(f"expected {expected}, got {name}={value!r}")


def require_nonnegative(hyperparameters: Mapping[str, Any], *names: str) -> None:
    """Raise ValueError unless these are finite numbers, or tensors of one element, >= 0."""
    for name in names:
        value = hyperparameters[name]
        tensor = isinstance(value, torch.Tensor) and value.numel() == 1
        number = tensor or isinstance(value, Real)
        finite = number and bool(0 <= value < math.inf)
        require(finite, f"a {name} >= 0 and finite", name, value)


def require_betas(hyperparameters: Mapping[str, Any]) -> None:
    """Raise ValueError unless ``betas`` are two numbers in [0, 1)."""
    betas = hyperparameters["betas"]
    pair = isinstance(betas, Sequence) and len(betas) == 2
    numbers = pair and all(isinstance(beta, Real) for beta in betas)
    require(numbers and all(0 <= beta < 1 for beta in betas), "two betas in [0, 1)", "betas", betas)
