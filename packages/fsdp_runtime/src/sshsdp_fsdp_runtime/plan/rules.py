"""The rules that a user writes: who is sharded how, computed in what, updated by what."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from sshsdp_fsdp_runtime.plan.model_spec import ParameterSpec
from sshsdp_shardchain import Degrees
from sshsdp_updates import StageKind, TensorUnit, UpdateRule


class PlanError(ValueError):
    """The rules and the model don't fit; nothing was allocated, sent or changed."""


_EXAMPLES = {
    "sharding": 'sharding=[Sharding("**", Degrees.for_zero3(ranks))]',
    "groups": 'groups=["layers.*"], patterns of names of modules',
    "packs": 'packs=[Pack("**.attention", ["query", "key", "value"])]',
    "formats": 'formats=[Cast("**", torch.bfloat16)]',
    "updates": 'updates=[Update("**", AdamW())]',
    "ignored": 'ignored=["adapter.**"], patterns of names of parameters',
}


def check_list(name: str, given: object, kind: type) -> None:
    """Refuse what is no list of `kind` as the argument `name` of `fully_shard` or `build_plan`.

    Raises:
        TypeError: with an example.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        got = shown(given)
    elif wrong := [item for item in given if not isinstance(item, kind)]:
        got = f"{shown(wrong[0])} in it"
    else:
        return
    raise TypeError(
        f"expected {name}= to be a list of {kind.__name__}, got {got}; write {_EXAMPLES[name]}"
    )


def _check_pattern(rule: object, pattern: object) -> None:
    if not isinstance(pattern, str):
        raise TypeError(
            f"expected the pattern of {type(rule).__name__} to be text, got {shown(pattern)}; "
            'write it first, "**" for everything'
        )


def shown(value: object) -> str:
    """A name for what may be as long as a model."""
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    plain = isinstance(value, str | int | float | None)
    return repr(value) if plain else f"an object of {type(value).__qualname__}"


def is_matrix(parameter: ParameterSpec) -> bool:
    """Predicate for `Update.where`: the parameter has two or more dimensions."""
    return len(parameter.shape) >= 2


def works_on_units(rule: UpdateRule) -> bool:
    """Whether a rule has stages that need whole units of a tensor."""
    return any(stage.kind is StageKind.UNITS for stage in rule.stages())


@dataclass(frozen=True, slots=True)
class Sharding:
    """Parameters that match `pattern` are sharded with `degrees` (paper, section 2.1).

    Raises:
        TypeError: one of them is of another type.
    """

    pattern: str
    degrees: Degrees

    def __post_init__(self) -> None:
        _check_pattern(self, self.pattern)
        if not isinstance(self.degrees, Degrees):
            raise TypeError(
                f"Sharding({self.pattern!r}): expected Degrees, got {self.degrees!r}; write "
                "Degrees(zero3, zero2, zero1), or one by name such as Degrees.for_zero3(ranks)"
            )


@dataclass(frozen=True, slots=True)
class Cast:
    """Parameters that match `pattern` are computed with in `dtype` (G is a cast).

    Main weights, main gradients and optimizer state stay in FP32 or wider.

    Raises:
        TypeError: one of them is of another type.
    """

    pattern: str
    dtype: torch.dtype

    def __post_init__(self) -> None:
        _check_pattern(self, self.pattern)
        if not isinstance(self.dtype, torch.dtype):
            raise TypeError(
                f"Cast({self.pattern!r}): expected a torch.dtype, got {self.dtype!r}; write one "
                "such as torch.bfloat16"
            )


@dataclass(frozen=True, slots=True)
class Update:
    """Trainable parameters that match `pattern` (and `where`) are updated by `rule`.

    A rule that works on matrices, like Muon, works on a `unit` at a time: a head, an expert, or
    the whole tensor, which None means.

    Raises:
        TypeError: one of them is of another type, such as a class of ``torch.optim``.
    """

    pattern: str
    rule: UpdateRule
    where: Callable[[ParameterSpec], bool] | None = None
    unit: TensorUnit | None = None

    def __post_init__(self) -> None:
        _check_pattern(self, self.pattern)
        where = f"Update({self.pattern!r})"
        UpdateRule.expect(self.rule, where)
        if self.where is not None and not callable(self.where):
            raise TypeError(
                f"{where}: expected where= to be a function of a parameter, got {self.where!r}; "
                "give one such as is_matrix"
            )
        if self.unit is not None:
            TensorUnit.expect(self.unit, where)


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
        TypeError: the pattern is no text.
        ValueError: members are no names, fewer than two, or one is there twice.
    """

    pattern: str
    members: Sequence[str]

    def __post_init__(self) -> None:
        _check_pattern(self, self.pattern)
        listed = isinstance(self.members, Sequence) and not isinstance(self.members, str)
        names = {name for name in self.members if isinstance(name, str)} if listed else set()
        if len(names) < 2 or len(names) < len(self.members):
            raise ValueError(
                f"expected two or more different members in Pack({self.pattern!r}), got "
                f'{self.members!r}; name them like ["query", "key", "value"]'
            )
        object.__setattr__(self, "members", tuple(self.members))
