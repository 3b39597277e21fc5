"""What the rules that orthogonalize momentum have in common."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from sshsdp_updates.iteration import Iteration, iteration_of
from sshsdp_updates.newton_schulz import (
    newton_schulz,
    newton_schulz_bytes,
    newton_schulz_cost,
)
from sshsdp_updates.operand import Access, Operand, Operands
from sshsdp_updates.rule import UpdateRule, require, require_nonnegative
from sshsdp_updates.stage import Scalars, Stage
from sshsdp_updates.unit import OWN

SCALES: dict[str, Callable[[int, int], float]] = {
    "original": lambda rows, columns: math.sqrt(max(1.0, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
    "sqrt_rows_over_columns": lambda rows, columns: math.sqrt(rows / columns),
    "one": lambda rows, columns: 1.0,  # noqa: ARG005
}
"""Factors on the update by name, from the rows and columns of the logical unit."""

NS_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def scale_of(name: str | None, shape: tuple[int, ...]) -> float:
    """Return the factor on the update of a unit; None is ``original``, as in torch."""
    rows, columns = shape
    return SCALES[name or "original"](rows, columns)


def validate_muon(values: Mapping[str, Any]) -> None:
    """Check the hyperparameters that these rules share.

    Raises:
        ValueError: naming one and its legal values.
    """
    require_nonnegative(values, "lr", "momentum", "weight_decay", "eps")
    iteration_of(values["ns_coefficients"])
    steps = values["ns_steps"]
    counted = isinstance(steps, int) and 0 <= steps < 100
    require(steps is None or counted, "ns_steps from 0 to 99, or None", "ns_steps", steps)
    scale = values["adjust_lr_fn"]
    require(
        scale is None or scale in tuple(SCALES),
        f"one of {', '.join(SCALES)}",
        "adjust_lr_fn",
        scale,
    )
    dtype = values["ns_dtype"]
    require(dtype in NS_DTYPES, f"one of {NS_DTYPES}", "ns_dtype", dtype)


class OrthogonalizingRule(UpdateRule):
    """A rule with a Newton-Schulz iteration over units that are matrices.

    Attributes:
        ns_coefficients: as of Muon, and likewise `ns_steps` and `ns_dtype`.
    """

    ns_coefficients: str | Sequence[float] | Iteration
    ns_steps: int | None
    ns_dtype: torch.dtype

    def __post_init__(self) -> None:
        self.validate(self.hyperparameters())

    def validate(self, hyperparameters: Mapping[str, Any]) -> None:
        """Check ranges, and that the dtype of u stays what it was laid out for."""
        validate_muon(hyperparameters)
        if hyperparameters["ns_dtype"] != self.ns_dtype:
            raise ValueError(
                f"expected ns_dtype={self.ns_dtype}, which temporaries were laid out for, got "
                f"ns_dtype={hyperparameters['ns_dtype']}; build a new optimizer"
            )

    def check_unit(self, shape: tuple[int, ...]) -> None:
        """Accept matrices only."""
        if len(shape) != 2:
            raise ValueError(
                f"expected units that are matrices, got shape {shape}; give vectors another rule, "
                "or the tensor a unit with rows and columns"
            )

    def unit_cost(self, shape: tuple[int, ...]) -> int:
        """Return the floating-point operations of the iteration."""
        steps = len(iteration_of(self.ns_coefficients).sequence(self.ns_steps))
        return newton_schulz_cost(shape, steps)

    def unit_scratch(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:  # noqa: ARG002
        """Return the memory of the iteration."""
        return newton_schulz_bytes(shape, self.ns_dtype)

    def element_scratch(self, dtype: torch.dtype) -> int:
        """Return the memory of looking ahead where u has another dtype than the momentum."""
        return 0 if self.ns_dtype == dtype else dtype.itemsize


def momentum(operands: Operands, scalars: Scalars) -> None:
    """Average gradients, in the arithmetic of ``torch.optim.Muon``, and look ahead into u."""
    gradients, averages = operands["main_grad"], operands["momentum_buffer"]
    decay = scalars["momentum"]
    torch._foreach_lerp_(averages, gradients, 1 - decay)
    u = operands["u"]
    if not scalars["nesterov"]:
        torch._foreach_copy_(u, averages)
    elif u[0].dtype == averages[0].dtype:
        torch._foreach_copy_(u, gradients)
        torch._foreach_lerp_(u, averages, decay)
    else:  # rounded once, at the end
        torch._foreach_copy_(u, torch._foreach_lerp(gradients, averages, decay))


def orthogonalize(operands: Operands, scalars: Scalars, *, scaled: bool) -> None:
    """Write the orthogonalized u into v, unit by unit, times the scale of the unit's shape."""
    iteration = iteration_of(scalars["ns_coefficients"])
    coefficients = iteration.sequence(scalars["ns_steps"])
    for u, v in zip(operands["u"], operands["v"], strict=True):
        v.copy_(
            newton_schulz(
                u,
                coefficients,
                norm=iteration.norm,
                eps=scalars["eps"],
                dtype=scalars["ns_dtype"],
            )
        )
        if scaled:
            v.mul_(scale_of(scalars["adjust_lr_fn"], tuple(u.shape[1:])))


MOMENTUM = Stage(
    "momentum",
    momentum,
    (
        Operand("main_grad", Access.READ),
        Operand("momentum_buffer", Access.UPDATE),
        Operand("u", Access.WRITE),
    ),
)
U_TO_V = (Operand("u", Access.READ, OWN), Operand("v", Access.WRITE, OWN))
