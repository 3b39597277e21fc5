"""Muon (Jordan et al. 2024): momentum, orthogonalized unit by unit."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from sshsdp_updates.iteration import Iteration
from sshsdp_updates.muon_parts import MOMENTUM, U_TO_V, OrthogonalizingRule, orthogonalize
from sshsdp_updates.operand import Access, Operand, Operands
from sshsdp_updates.rule import StateField, Temporary
from sshsdp_updates.stage import Scalars, Stage, StageKind


@dataclass(frozen=True)
class Muon(OrthogonalizingRule):
    """Muon with the arguments and the arithmetic of ``torch.optim.Muon``.

    What is a matrix is said by the member's unit: the tensor, a head, an expert. Three stages, as
    in the example of SS-HSDP section 3.1: gradients and momentum to u, Newton-Schulz from u to v,
    v into the weights; only parts of u and v ever travel. The momentum is an average,
    ``m = mu m + (1 - mu) g``; a sum of gradients, as in other implementations, is
    ``1 / (1 - mu)`` times that, and gives the same updates.

    Attributes:
        lr: learning rate, a number or a tensor of one element.
        weight_decay: decoupled, multiplied by `lr` without the scale.
        momentum: decay of the average.
        nesterov: look ahead by one step.
        ns_coefficients: (a, b, c) for all steps, a name of `ITERATIONS`, or an `Iteration`.
        eps: smallest norm to divide by.
        ns_steps: None takes as many as the coefficients are made for.
        adjust_lr_fn: a name of `SCALES`, the factor from the unit's logical shape; None is
            ``"original"``.
        ns_dtype: of u and of all products of the iteration.
    """

    name: ClassVar[str] = "muon"

    lr: float | torch.Tensor = 1e-3
    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    ns_coefficients: str | Sequence[float] | Iteration = "kj5"
    eps: float = 1e-7
    ns_steps: int | None = None
    adjust_lr_fn: str | None = None
    ns_dtype: torch.dtype = torch.bfloat16

    def state_fields(self) -> tuple[StateField, ...]:
        """Return the momentum, in the dtype of the main weights."""
        return (StateField("momentum_buffer"),)

    def temporaries(self) -> tuple[Temporary, ...]:
        """Return u in the dtype of the iteration and v in that of the main weights."""
        return (Temporary("u", self.ns_dtype), Temporary("v"))

    def stages(self) -> tuple[Stage, ...]:
        """Return f0, f1 and f2 of the paper's example."""
        return (MOMENTUM, _ORTHOGONALIZE, _APPLY)


def _apply(operands: Operands, scalars: Scalars) -> None:
    weights = operands["main_weight"]
    torch._foreach_mul_(weights, 1 - scalars["lr"] * scalars["weight_decay"])
    torch._foreach_add_(weights, operands["v"], alpha=-scalars["lr"])


_ORTHOGONALIZE = Stage(
    "orthogonalize", partial(orthogonalize, scaled=True), U_TO_V, StageKind.UNITS
)
_APPLY = Stage("apply", _apply, (Operand("v", Access.READ), Operand("main_weight", Access.UPDATE)))
