"""Checks a rule against its own declarations, on a few elements, before it meets real ones."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sshsdp_updates.declarations import GIVEN, check_declarations
from sshsdp_updates.operand import Access, Operand, OperandAccessError, Operands
from sshsdp_updates.rule import StateField, Temporary, UpdateRule
from sshsdp_updates.stage import Scalars, Stage, StageKind, scalars_of
from sshsdp_updates.unit import ELEMENT, ROW, TENSOR, Unit

_UNITS = ((2, 3, 4), (1, 5, 2))  # scratch tensors: so many units, of so many rows and columns


def audit(rule: UpdateRule, dtype: torch.dtype, device: torch.device) -> None:
    """Run the stages of `rule` on scratch tensors, as first and as second step.

    Raises:
        ValueError: what `check_declarations` raises.
        TemporaryError: a temporary is read before it was produced.
        UndeclaredOperandError: a stage used a field that it does not declare.
        OperandAccessError: a stage changed an operand that it declares READ, or did not
            overwrite all of one that it declares WRITE.
    """
    check_declarations(rule)
    hyperparameters = rule.hyperparameters()
    fields = dict.fromkeys(GIVEN, (dtype, ELEMENT))
    declared: list[StateField | Temporary] = [*rule.state_fields(), *rule.temporaries()]
    for field in declared:
        fields[field.name] = (field.dtype or dtype, field.unit)
    for step in (1, 2):
        scratch = {
            name: tuple(_scratch(sizes, unit, device).to(of) for sizes in _UNITS)
            for name, (of, unit) in fields.items()
        }
        for stage in rule.stages():
            _run(rule, stage, scratch, scalars_of(hyperparameters, hyperparameters, step))


def _scratch(sizes: tuple[int, int, int], unit: Unit, device: torch.device) -> Tensor:
    if unit == TENSOR:
        return torch.ones((), device=device)
    count, rows, columns = sizes
    numel = count * rows * (1 if unit == ROW else columns)
    return torch.linspace(0.5, 1.5, numel, device=device)


def _run(
    rule: UpdateRule,
    stage: Stage,
    scratch: Mapping[str, tuple[Tensor, ...]],
    scalars: Scalars,
) -> None:
    declared = {operand.field: _handed(stage, operand, scratch) for operand in stage.operands}
    before = {field: [part.clone() for part in parts] for field, parts in declared.items()}
    for operand in stage.operands:
        if operand.access is Access.WRITE:
            for part in declared[operand.field]:
                part.fill_(float("nan"))
    shapes = tuple(unit[1:] for unit in _UNITS) if stage.kind is StageKind.ROWS else ()
    stage.function(Operands(stage.name, declared, shapes), scalars)
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


def _handed(
    stage: Stage, operand: Operand, scratch: Mapping[str, tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Give scratch tensors the shape in which a stage of this kind gets them."""
    parts = scratch[operand.field]
    if stage.kind is StageKind.UNITS:
        return tuple(part.view(unit) for part, unit in zip(parts, _UNITS, strict=True))
    if stage.kind is StageKind.ROWS:
        return tuple(part.view(k, m) for part, (k, m, _) in zip(parts, _UNITS, strict=True))
    if operand.unit != ROW:
        return parts
    expanded = [part.repeat_interleave(n) for part, (_, _, n) in zip(parts, _UNITS, strict=True)]
    if stage.kind is StageKind.REDUCE:
        return tuple(part.double() for part in expanded)
    return tuple(expanded)


def _same_bits(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first.reshape(-1).view(torch.uint8), second.reshape(-1).view(torch.uint8))
