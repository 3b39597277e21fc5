"""The rules that a user writes: who is sharded how, computed in what, updated by what."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from sshsdp_fsdp_runtime.plan.model_spec import ParameterSpec
from sshsdp_shardchain import Degrees
from sshsdp_updates import StageKind, TensorUnit, UpdateRule


class PlanError(ValueError):
    """The rules and the model don't fit; nothing was allocated, sent or changed."""


def is_matrix(parameter: ParameterSpec) -> bool:
    """Predicate for `Update.where`: the parameter has two or more dimensions."""
    return len(parameter.shape) >= 2


def works_on_units(rule: UpdateRule) -> bool:
    """Whether a rule has stages that need whole units of a tensor."""
    return any(stage.kind is StageKind.UNITS for stage in rule.stages())


@dataclass(frozen=True, slots=True)
class Sharding:
    """Parameters that match `pattern` are sharded with `degrees` (paper, section 2.1)."""

    pattern: str
    degrees: Degrees


@dataclass(frozen=True, slots=True)
class Cast:
    """Parameters that match `pattern` are computed with in `dtype` (G is a cast).

    Main weights, main gradients and optimizer state stay in FP32 or wider.
    """

    pattern: str
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Update:
    """Trainable parameters that match `pattern` (and `where`) are updated by `rule`.

    A rule that works on matrices, like Muon, works on a `unit` at a time: a head, an expert, or
    the whole tensor, which None means.
    """

    pattern: str
    rule: UpdateRule
    where: Callable[[ParameterSpec], bool] | None = None
    unit: TensorUnit | None = None


@dataclass(frozen=True, slots=True)
class Pack:
    """Linear layers that are computed as one: Q, K and V, or gate and up (paper, section 3).

    In every module that matches `pattern`, the weights of `members` lie one after another, so that
    one operand of shape [sum of their output features, input features] is a view of them, and so
    do their biases. Each keeps its name, its unit and its place in checkpoints.

    Args:
        pattern: of modules.
        members: names of ``nn.Linear`` modules, relative to the module, in the operand's order.

    Raises:
        ValueError: there are fewer than two members, or one is there twice.
    """

    pattern: str
    members: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.members, str) or len(set(self.members)) < max(len(self.members), 2):
            raise ValueError(
                f"expected two or more different members in Pack({self.pattern!r}), got "
                f'{self.members!r}; name them like ["query", "key", "value"]'
            )
        object.__setattr__(self, "members", tuple(self.members))
