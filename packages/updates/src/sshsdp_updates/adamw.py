"""AdamW (Loshchilov and Hutter 2019, "Decoupled weight decay regularization", algorithm 2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from sshsdp_updates.operand import Access, Operand, Operands
from sshsdp_updates.rule import StateField, UpdateRule, require_betas, require_nonnegative
from sshsdp_updates.stage import Scalars, Stage
from sshsdp_updates.vectors import WholeVectors


@dataclass(frozen=True)
class AdamW(UpdateRule):
    """Adam with decoupled weight decay, in the arithmetic of ``torch.optim.AdamW``.

    With ``bc_i = 1 - beta_i ** step``: ``w *= 1 - lr * weight_decay`` first, then
    ``w -= lr / bc_1 * m / (sqrt(v) / sqrt(bc_2) + eps)``. One pass over the operands.

    Attributes:
        lr: learning rate, a number or a tensor of one element.
        betas: decay of the first and of the second moment, each in [0, 1).
        eps: added to the root of the corrected second moment.
        weight_decay: decoupled, multiplied by `lr`.
    """

    name: ClassVar[str] = "adamw"

    lr: float | torch.Tensor = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2

    def __post_init__(self) -> None:
        self.validate(self.hyperparameters())

    def state_fields(self) -> tuple[StateField, ...]:
        """Return both moments, in the dtype of the main weights."""
        return (StateField("exp_avg"), StateField("exp_avg_sq"))

    def stages(self) -> tuple[Stage, ...]:
        """Return the one elementwise stage."""
        return (_STAGE,)

    def validate(self, hyperparameters: Mapping[str, Any]) -> None:
        """Check ranges as ``torch.optim.AdamW`` does."""
        require_nonnegative(hyperparameters, "lr", "eps", "weight_decay")
        require_betas(hyperparameters)


def _step(operands: Operands, scalars: Scalars) -> None:
    names = ("main_weight", "main_grad", "exp_avg", "exp_avg_sq")
    vectors = WholeVectors(*(operands[name] for name in names))
    weights, gradients, averages, squares = vectors.fields
    # The kernel takes a count per tensor and only reads it: one tensor serves all of them.
    step = torch.tensor(float(scalars["step"]), device=weights[0].device)
    beta1, beta2 = scalars["betas"]
    torch._fused_adamw_(
        weights,
        gradients,
        averages,
        squares,
        [],
        [step] * len(weights),
        lr=scalars["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=scalars["weight_decay"],
        eps=scalars["eps"],
        amsgrad=False,
        maximize=False,
    )
    vectors.write_back(0, 2, 3)


_STAGE = Stage(
    "adamw",
    _step,
    (
        Operand("main_grad", Access.READ),
        Operand("exp_avg", Access.UPDATE),
        Operand("exp_avg_sq", Access.UPDATE),
        Operand("main_weight", Access.UPDATE),
    ),
)
