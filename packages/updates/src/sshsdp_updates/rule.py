"""An update rule as data: hyperparameters, state, stages."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch

from sshsdp_updates.stage import Stage


@dataclass(frozen=True, slots=True)
class StateField:
    """One value that a rule keeps per element between steps, zero before the first one.

    Attributes:
        name: its key in ``optimizer.state`` and in state dicts.
        dtype: None means the dtype of the main weights.
    """

    name: str
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class UpdateRule(ABC):
    """A rule says what one step does to a tensor, and nothing about how tensors are distributed.

    Subclasses are frozen dataclasses whose fields are the hyperparameters. The *instance* is the
    param group: members that share a rule object share hyperparameters and schedules.
    """

    name: ClassVar[str]

    def hyperparameters(self) -> dict[str, Any]:
        """Return the initial values of the param group, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @abstractmethod
    def state_fields(self) -> tuple[StateField, ...]:
        """Return what is kept per element; the count of steps is kept for every rule."""

    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """Return the stages in the order in which they run."""

    @abstractmethod
    def validate(self, hyperparameters: Mapping[str, Any]) -> None:
        """Check values before they are used: at construction, and at every step.

        Raises:
            ValueError: naming the hyperparameter and its legal values.
        """


def require(condition: bool, expected: str, name: str, value: object) -> None:
    """Raise ValueError unless `condition` holds, which also is how a NaN is caught."""
    if not condition:
        raise ValueError(f"expected {expected}, got {name}={value!r}")
