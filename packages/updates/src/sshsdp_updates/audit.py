"""Checks a rule against its own declarations, on a few elements, before it meets real ones."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sshsdp_updates.operand import Access, OperandAccessError, Operands
from sshsdp_updates.rule import UpdateRule
from sshsdp_updates.stage import Scalars, Stage, scalars_of
from sshsdp_updates.unit import ELEMENT

_LENGTHS = (5, 8)
_GIVEN = ("main_weight", "main_grad")


def audit(rule: UpdateRule, dtype: torch.dtype, device: torch.device) -> None:
    """Run the stages of `rule` on scratch tensors, as first and as second step.

    Raises:
        ValueError: an operand names no field, or a unit that is not supported.
        UndeclaredOperandError: a stage used a field that it does not declare.
        OperandAccessError: a stage changed an operand that it declares READ, or did not
            overwrite all of one that it declares WRITE.
    """
    fields = dict.fromkeys(_GIVEN, dtype)
    for field in rule.state_fields():
        if field.name in (*_GIVEN, "step"):
            raise ValueError(
                f"rule {rule.name!r}: expected another name for state field {field.name!r}; "
                f"{', '.join(_GIVEN)} and step have a meaning already"
            )
        fields[field.name] = field.dtype or dtype
    stages = rule.stages()
    for stage in stages:
        _check_operands(rule, stage, fields)
    hyperparameters = rule.hyperparameters()
    for step in (1, 2):
        scratch = {
            field: tuple(
                torch.linspace(0.5, 1.5, length, device=device).to(of) for length in _LENGTHS
            )
            for field, of in fields.items()
        }
        for stage in stages:
            _run(rule, stage, scratch, scalars_of(hyperparameters, hyperparameters, step))


def _check_operands(rule: UpdateRule, stage: Stage, fields: Mapping[str, torch.dtype]) -> None:
    for operand in stage.operands:
        if operand.field not in fields:
            raise ValueError(
                f"rule {rule.name!r}, stage {stage.name!r}: expected operands among "
                f"{sorted(fields)}, got {operand.field!r}; add it to state_fields()"
            )
        if operand.unit != ELEMENT:
            raise ValueError(
                f"rule {rule.name!r}, stage {stage.name!r}: expected unit ELEMENT for operand "
                f"{operand.field!r}, the only one of this version, got {operand.unit.name!r}"
            )


def _run(
    rule: UpdateRule,
    stage: Stage,
    scratch: Mapping[str, tuple[Tensor, ...]],
    scalars: Scalars,
) -> None:
    declared = {operand.field: scratch[operand.field] for operand in stage.operands}
    before = {field: [part.clone() for part in parts] for field, parts in declared.items()}
    for operand in stage.operands:
        if operand.access is Access.WRITE:
            for part in declared[operand.field]:
                part.fill_(float("nan"))
    stage.function(Operands(stage.name, declared), scalars)
    for operand in stage.operands:
        parts = declared[operand.field]
        same = all(map(_same_bits, parts, before[operand.field]))
        if operand.access is Access.READ and not same:
            raise OperandAccessError(
                f"rule {rule.name!r}, stage {stage.name!r}: expected operand {operand.field!r}, "
                "declared READ, to stay as it is, got it changed; declare it UPDATE"
            )
        if operand.access is Access.WRITE and any(bool(part.isnan().any()) for part in parts):
            raise OperandAccessError(
                f"rule {rule.name!r}, stage {stage.name!r}: expected operand {operand.field!r}, "
                "declared WRITE, to be overwritten everywhere without being read, got elements "
                "that depend on the old contents; declare it UPDATE or write all of it in place"
            )


def _same_bits(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))
