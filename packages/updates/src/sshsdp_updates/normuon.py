"""NorMuon (Li et al. 2025): Muon with a second moment per row of the update."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from sshsdp_updates.iteration import Iteration
from sshsdp_updates.muon_parts import (
    MOMENTUM,
    U_TO_V,
    OrthogonalizingRule,
    orthogonalize,
    scale_of,
)
from sshsdp_updates.operand import Access, Operand, Operands
from sshsdp_updates.rule import StateField, Temporary, require
from sshsdp_updates.stage import Scalars, Stage, StageKind
from sshsdp_updates.unit import ROW

_TINY = 1e-10  # as in the authors' code; keeps rows of zeros at zero


@dataclass(frozen=True)
class NorMuon(OrthogonalizingRule):
    """Muon whose rows are divided by a running root mean square of their own.

    With ``o`` the orthogonalized momentum of a unit: ``s = b2 s + (1 - b2) mean(o^2)`` per row,
    ``o / sqrt(s)``, rescaled to the norm that ``o`` had, times the scale of the unit's shape. Row
    means are sums over fixed blocks, so that no cut changes them.

    Attributes:
        lr: learning rate, a number or a tensor of one element.
        weight_decay: decoupled, multiplied by `lr` without the scale.
        momentum: decay of the average of gradients.
        beta2: decay of the second moment, in [0, 1).
        nesterov: look ahead by one step.
        ns_coefficients: (a, b, c) for all steps, a name of `ITERATIONS`, or an `Iteration`.
        eps: smallest norm to divide by, in the iteration.
        ns_steps: None takes as many as the coefficients are made for.
        adjust_lr_fn: a name of `SCALES`; None is ``"original"``.
        ns_dtype: of u and of all products of the iteration.
    """

    name: ClassVar[str] = "normuon"

    lr: float | torch.Tensor = 1e-3
    weight_decay: float = 0.1
    momentum: float = 0.95
    beta2: float = 0.95
    nesterov: bool = True
    ns_coefficients: str | Sequence[float] | Iteration = "kj5"
    eps: float = 1e-7
    ns_steps: int | None = None
    adjust_lr_fn: str | None = None
    ns_dtype: torch.dtype = torch.bfloat16

    def state_fields(self) -> tuple[StateField, ...]:
        """Return the momentum per element and the second moment per row."""
        return (StateField("momentum_buffer"), StateField("second_momentum", unit=ROW))

    def temporaries(self) -> tuple[Temporary, ...]:
        """Return u and v of Muon, the rows' sums of squares and their factors."""
        return (
            Temporary("u", self.ns_dtype),
            Temporary("v"),
            Temporary("square_sum", torch.float64, ROW),
            Temporary("factor", None, ROW),
        )

    def stages(self) -> tuple[Stage, ...]:
        """Return momentum, iteration, sums of squares, factors and the update."""
        return (MOMENTUM, _ORTHOGONALIZE, _SQUARES, _FACTORS, _APPLY)

    def validate(self, hyperparameters: Mapping[str, Any]) -> None:
        """Check ranges, and that the dtype of u stays what it was laid out for."""
        super().validate(hyperparameters)
        beta2 = hyperparameters["beta2"]
        require(0 <= beta2 < 1, "a beta2 in [0, 1)", "beta2", beta2)

    def element_scratch(self, dtype: torch.dtype) -> int:
        """Return the memory of v times the factors of its rows."""
        return dtype.itemsize


def _squares(operands: Operands, scalars: Scalars) -> None:  # noqa: ARG001
    for v, square in zip(operands["v"], operands["square_sum"], strict=True):
        square.copy_(v)
        square.square_()


def _factors(operands: Operands, scalars: Scalars) -> None:
    """Divide by the root of the second moment, then restore the norm, and scale last."""
    columns = zip(
        operands["square_sum"],
        operands["second_momentum"],
        operands["factor"],
        operands.shapes,
        strict=True,
    )
    for sums, second, factor, shape in columns:
        second.lerp_((sums / shape[-1]).to(second.dtype), 1 - scalars["beta2"])
        inverse = torch.sqrt(second.double()).add_(_TINY).reciprocal_()
        before = sums.sum(-1, keepdim=True).sqrt_()
        after = (sums * inverse.square()).sum(-1, keepdim=True).sqrt_()
        scale = scale_of(scalars["adjust_lr_fn"], shape)
        factor.copy_(inverse * (before / (after + _TINY)) * scale)


def _apply(operands: Operands, scalars: Scalars) -> None:
    weights = operands["main_weight"]
    updates = torch._foreach_mul(operands["v"], operands["factor"])
    torch._foreach_mul_(weights, 1 - scalars["lr"] * scalars["weight_decay"])
    torch._foreach_add_(weights, updates, alpha=-scalars["lr"])


_ORTHOGONALIZE = Stage(
    "orthogonalize", partial(orthogonalize, scaled=False), U_TO_V, StageKind.UNITS
)
_SQUARES = Stage(
    "squares",
    _squares,
    (Operand("v", Access.READ), Operand("square_sum", Access.WRITE, ROW)),
    StageKind.REDUCE,
)
_FACTORS = Stage(
    "factors",
    _factors,
    (
        Operand("square_sum", Access.READ, ROW),
        Operand("second_momentum", Access.UPDATE, ROW),
        Operand("factor", Access.WRITE, ROW),
    ),
    StageKind.ROWS,
)
_APPLY = Stage(
    "apply",
    _apply,
    (
        Operand("v", Access.READ),
        Operand("factor", Access.READ, ROW),
        Operand("main_weight", Access.UPDATE),
    ),
)
