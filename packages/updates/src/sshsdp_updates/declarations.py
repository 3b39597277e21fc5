"""What a rule declares must make sense before anything runs."""

from collections.abc import Mapping

from sshsdp_updates.operand import Access, Operand
from sshsdp_updates.rule import StateField, Temporary, UpdateRule
from sshsdp_updates.stage import Stage, StageKind
from sshsdp_updates.unit import ELEMENT, ROW, TENSOR, Unit

GIVEN = ("main_weight", "main_grad")


class TemporaryError(RuntimeError):
    """A stage reads a temporary that no earlier stage of the step has written."""


def is_staged(rule: UpdateRule) -> bool:
    """Tell whether `rule` needs more than one call over the elements: units, rows, temporaries."""
    return bool(rule.temporaries()) or any(
        stage.kind is not StageKind.ELEMENTS for stage in rule.stages()
    )


def check_declarations(rule: UpdateRule) -> None:
    """Check names, units and the order of stages.

    Raises:
        ValueError: a field without or with two meanings, or a unit that its stage cannot have.
        TemporaryError: a temporary is read before it was produced.
    """
    units = _field_units(rule)
    produced = {name for name in units if name not in {t.name for t in rule.temporaries()}}
    if TENSOR in units.values() and is_staged(rule):
        raise ValueError(
            f"rule {rule.name!r}: expected nothing but stages over elements, and no temporaries, "
            "beside a field per tensor, got others; keep it per row"
        )
    names = [stage.name for stage in rule.stages()]
    for stage in rule.stages():
        title = f"rule {rule.name!r}, stage {stage.name!r}"
        if names.count(stage.name) > 1 or stage.name in units:
            raise ValueError(f"{title}: expected a name of its own, got one twice; rename it")
        for operand in stage.operands:
            if operand.field not in units:
                raise ValueError(
                    f"{title}: expected operands among {sorted(units)}, got {operand.field!r}; "
                    "add it to state_fields() or temporaries()"
                )
            _check_unit(title, stage, operand, units)
            if operand.access is not Access.WRITE and operand.field not in produced:
                raise TemporaryError(
                    f"{title}: expected temporary {operand.field!r} from an earlier stage, got "
                    "none that writes it; order the stages, or declare it WRITE"
                )
        if stage.kind is StageKind.REDUCE:
            _check_reduce(title, stage)
        produced |= {o.field for o in stage.operands if o.access is not Access.READ}


def _field_units(rule: UpdateRule) -> dict[str, Unit]:
    units = dict.fromkeys(GIVEN, ELEMENT)
    declared: tuple[StateField | Temporary, ...] = (*rule.state_fields(), *rule.temporaries())
    for field in declared:
        kind = "state field" if isinstance(field, StateField) else "temporary"
        if field.name in units or field.name == "step":
            raise ValueError(
                f"rule {rule.name!r}: expected another name for {kind} {field.name!r}; "
                f"{', '.join(units)} and step have a meaning already"
            )
        legal = (ELEMENT, ROW, TENSOR) if isinstance(field, StateField) else (ELEMENT, ROW)
        if field.unit not in legal:
            raise ValueError(
                f"rule {rule.name!r}: expected {kind} {field.name!r} per "
                f"{' or per '.join(unit.name for unit in legal)}, got {field.unit.name!r}; a "
                "stage's operand says how much is needed at once"
            )
        units[field.name] = field.unit
    return units


def _check_unit(title: str, stage: Stage, operand: Operand, units: Mapping[str, Unit]) -> None:
    """Compare the unit of an operand with that of its field and with what its stage can have."""
    of_field = units[operand.field]
    whole = of_field in (ROW, TENSOR)
    if operand.unit != of_field if whole else operand.unit in (ROW, TENSOR):
        raise ValueError(
            f"{title}: expected operand {operand.field!r} per "
            f"{of_field.name if whole else 'element or unit'}, as the field is, got "
            f"{operand.unit.name!r}; change one of the two"
        )
    per_row = of_field == ROW
    legal = {
        StageKind.ELEMENTS: operand.unit in (ELEMENT, TENSOR)
        or (per_row and operand.access is Access.READ),
        StageKind.REDUCE: operand.unit == ELEMENT or (per_row and operand.access is Access.WRITE),
        StageKind.ROWS: per_row,
        # Units of elements beside units of heads: their counts are compared, member by member.
        StageKind.UNITS: not per_row,
    }
    if not legal[stage.kind]:
        raise ValueError(
            f"{title}: expected a unit that a stage over {stage.kind.value} can have, got "
            f"{operand.unit.name!r}, {operand.access.value}, for operand {operand.field!r}; "
            "see StageKind"
        )


def _check_reduce(title: str, stage: Stage) -> None:
    rows = [operand.field for operand in stage.operands if operand.unit == ROW]
    others = [o.field for o in stage.operands if o.unit != ROW and o.access is not Access.READ]
    if len(rows) != 1 or others:
        raise ValueError(
            f"{title}: expected one operand per row, written, and others that are read, got "
            f"{rows} per row and {others} written; use one stage per sum"
        )
