"""Stochastic gradient descent with momentum (Sutskever et al. 2013, as torch implements it)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch

from sshsdp_updates.operand import Access, Operand, Operands
from sshsdp_updates.rule import StateField, UpdateRule, require, require_nonnegative
from sshsdp_updates.stage import Scalars, Stage
from sshsdp_updates.vectors import WholeVectors


@dataclass(frozen=True)
class SGD(UpdateRule):
    """SGD in the arithmetic of ``torch.optim.SGD``.

    Weight decay is L2: it enters the gradient before the momentum. The first step of a member
    sets the buffer to the gradient without dampening; later steps do
    ``buffer = momentum * buffer + (1 - dampening) * g``. One pass over the operands.

    Attributes:
        lr: learning rate, a number or a tensor of one element.
        momentum: 0 keeps no buffer; whether it is 0 is fixed at construction.
        dampening: of the gradient in the momentum.
        weight_decay: L2.
        nesterov: needs a momentum and no dampening.
    """

    name: ClassVar[str] = "sgd"

    lr: float | torch.Tensor = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        self.validate(self.hyperparameters())

    def state_fields(self) -> tuple[StateField, ...]:
        """Return the momentum buffer, if there is a momentum."""
        return (StateField("momentum_buffer"),) if self.momentum else ()

    def stages(self) -> tuple[Stage, ...]:
        """Return the one elementwise stage."""
        return (_MOMENTUM if self.momentum else _PLAIN,)

    def validate(self, hyperparameters: Mapping[str, Any]) -> None:
        """Check ranges as ``torch.optim.SGD`` does, and that momentum does not come or go."""
        require_nonnegative(hyperparameters, "lr", "momentum", "weight_decay")
        momentum, dampening = hyperparameters["momentum"], hyperparameters["dampening"]
        nesterov = hyperparameters["nesterov"]
        finite = isinstance(dampening, Real) and math.isfinite(dampening)
        require(finite, "a finite number as dampening, usually from 0 to 1", "dampening", dampening)
        require(isinstance(nesterov, bool), "True or False as nesterov", "nesterov", nesterov)
        require(
            bool(momentum) == bool(self.momentum),
            "a momentum > 0, because the rule was built with one"
            if self.momentum
            else "a momentum of 0, because the rule was built without one and keeps no buffer",
            "momentum",
            momentum,
        )
        require(
            not nesterov or (momentum > 0 and dampening == 0),
            "a momentum > 0 and dampening 0 with nesterov",
            "(momentum, dampening)",
            (momentum, dampening),
        )


def _plain(operands: Operands, scalars: Scalars) -> None:
    vectors = WholeVectors(operands["main_weight"], operands["main_grad"])
    weights, gradients = vectors.fields
    _fused(weights, gradients, (), scalars)
    vectors.write_back(0)


def _momentum(operands: Operands, scalars: Scalars) -> None:
    names = ("main_weight", "main_grad", "momentum_buffer")
    vectors = WholeVectors(*(operands[name] for name in names))
    weights, gradients, buffers = vectors.fields
    _fused(weights, gradients, buffers, scalars)
    vectors.write_back(0, 2)


def _fused(
    weights: tuple[torch.Tensor, ...],
    gradients: tuple[torch.Tensor, ...],
    buffers: tuple[torch.Tensor, ...],
    scalars: Scalars,
) -> None:
    torch._fused_sgd_(
        weights,
        gradients,
        buffers,
        weight_decay=scalars["weight_decay"],
        momentum=scalars["momentum"],
        lr=scalars["lr"],
        dampening=scalars["dampening"],
        nesterov=scalars["nesterov"],
        maximize=False,
        is_first_step=scalars["step"] == 1,
    )


_GRAD = Operand("main_grad", Access.READ)
_WEIGHT = Operand("main_weight", Access.UPDATE)
_PLAIN = Stage("sgd", _plain, (_GRAD, _WEIGHT))
_MOMENTUM = Stage(
    "sgd_momentum", _momentum, (_GRAD, Operand("momentum_buffer", Access.UPDATE), _WEIGHT)
)
