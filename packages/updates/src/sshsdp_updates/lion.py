"""Lion (Chen et al. 2023, "Symbolic discovery of optimization algorithms", program 1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from sshsdp_updates.operand import Access, Operand, Operands
from sshsdp_updates.rule import StateField, UpdateRule, require_betas, require_nonnegative
from sshsdp_updates.stage import Scalars, Stage


@dataclass(frozen=True)
class Lion(UpdateRule):
    """The sign of an average of gradients.

    ``w *= 1 - lr * weight_decay``, then ``w -= lr * sign(b1 m + (1 - b1) g)`` and
    ``m = b2 m + (1 - b2) g``. The decay is decoupled: it never changes a sign.

    Attributes:
        lr: learning rate, a number or a tensor of one element.
        betas: b1 of the direction and b2 of the average that is kept, each in [0, 1).
        weight_decay: multiplied by `lr`.
    """

    name: ClassVar[str] = "lion"

    lr: float | torch.Tensor = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        self.validate(self.hyperparameters())

    def state_fields(self) -> tuple[StateField, ...]:
        """Return the average, in the dtype of the main weights."""
        return (StateField("exp_avg"),)

    def stages(self) -> tuple[Stage, ...]:
        """Return the one elementwise stage."""
        return (_STAGE,)

    def validate(self, hyperparameters: Mapping[str, Any]) -> None:
        """Check ranges."""
        require_nonnegative(hyperparameters, "lr", "weight_decay")
        require_betas(hyperparameters)


def _step(operands: Operands, scalars: Scalars) -> None:
    weights, averages = operands["main_weight"], operands["exp_avg"]
    gradients = operands["main_grad"]
    fast, slow = scalars["betas"]
    torch._foreach_mul_(weights, 1 - scalars["lr"] * scalars["weight_decay"])
    directions = torch._foreach_mul(averages, fast)
    torch._foreach_add_(directions, gradients, alpha=1 - fast)
    torch._foreach_sign_(directions)
    torch._foreach_add_(weights, directions, alpha=-scalars["lr"])
    torch._foreach_mul_(averages, slow)
    torch._foreach_add_(averages, gradients, alpha=1 - slow)


_STAGE = Stage(
    "lion",
    _step,
    (
        Operand("main_grad", Access.READ),
        Operand("exp_avg", Access.UPDATE),
        Operand("main_weight", Access.UPDATE),
    ),
)
