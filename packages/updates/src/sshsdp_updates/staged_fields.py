"""Which fields of a rule need room of their own while its stages run."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sshsdp_updates.declarations import check_declarations
from sshsdp_updates.operand import Access, Operand
from sshsdp_updates.rule import StateField, Temporary, UpdateRule
from sshsdp_updates.stage import StageKind
from sshsdp_updates.unit import ROW, TensorUnit, UnitGrid

SUMS = torch.float64  # what is reduced is summed in


@dataclass(frozen=True, slots=True)
class Room:
    """A field that is laid out for the stages of a rule.

    Attributes:
        name: of the field, or of the stage for contributions to sums.
        dtype: None means the dtype of the main weights.
    """

    name: str
    dtype: torch.dtype | None

    def itemsize(self, main: torch.dtype) -> int:
        """Bytes of an element where main weights have dtype `main`."""
        return (self.dtype or main).itemsize


@dataclass(frozen=True, slots=True)
class StagedFields:
    """The room that a rule needs.

    Attributes:
        units: kept in unit order: temporaries per element, and whatever stages over units touch.
        sums: contributions of each reduce stage, by its name.
        rows: values per row that stages over elements read, once per element.
        flat: temporaries and contributions that stages over elements touch; where units are not
            contiguous they work on these, in the order of the tensor.
        row_temporaries: temporaries per row.
    """

    units: tuple[Room, ...]
    sums: tuple[Room, ...]
    rows: tuple[Room, ...]
    flat: tuple[Room, ...]
    row_temporaries: tuple[Room, ...]

    @classmethod
    def of(cls, rule: UpdateRule) -> "StagedFields":
        """Collect them from the declarations of `rule`, which were checked."""
        stages = rule.stages()
        fields: list[StateField | Temporary] = [*rule.state_fields(), *rule.temporaries()]
        dtypes = {field.name: field.dtype for field in fields}
        temporaries = [t.name for t in rule.temporaries() if t.unit != ROW]
        placed = dict.fromkeys(temporaries)
        elementwise: list[Operand] = []
        sums = []
        for stage in stages:
            if stage.kind is StageKind.UNITS:
                placed.update(dict.fromkeys(operand.field for operand in stage.operands))
            if stage.kind is StageKind.REDUCE:
                sums.append(Room(stage.name, SUMS))
            if stage.kind in (StageKind.ELEMENTS, StageKind.REDUCE):
                elementwise += stage.operands
        read = [o.field for o in elementwise if o.unit == ROW and o.access is Access.READ]
        touched = {o.field for o in elementwise}
        flat = [Room(name, dtypes[name]) for name in temporaries if name in touched]
        return cls(
            units=tuple(Room(name, dtypes.get(name)) for name in placed),
            sums=tuple(sums),
            rows=tuple(Room(name, dtypes[name]) for name in dict.fromkeys(read)),
            flat=(*flat, *sums),
            row_temporaries=tuple(
                Room(t.name, t.dtype) for t in rule.temporaries() if t.unit == ROW
            ),
        )


def travelling_bytes(rule: UpdateRule, dtype: torch.dtype) -> int:
    """Return the bytes per element of a unit that travel to whoever works on it, and back.

    Args:
        rule: the rule.
        dtype: of the main weights.

    Raises:
        ValueError: a declaration that cannot be.
        TemporaryError: a temporary is read before it was produced.
    """
    check_declarations(rule)
    rooms = {room.name: room for room in StagedFields.of(rule).units}
    return sum(
        rooms[operand.field].itemsize(dtype) * (2 if operand.access is Access.UPDATE else 1)
        for stage in rule.stages()
        if stage.kind is StageKind.UNITS
        for operand in stage.operands
    )


def grid_of(rule: UpdateRule, name: str, shape: tuple[int, ...], own: TensorUnit) -> UnitGrid:
    """Return the units in which the stages of `rule` work on a tensor.

    Args:
        rule: its declarations were checked.
        name: of the tensor, for messages.
        shape: of the tensor.
        own: the unit of the tensor, for operands that don't say another.

    Raises:
        ValueError: operands of one stage have different numbers of units, or cut differently.
    """
    chosen: tuple[str, TensorUnit] | None = None
    for stage in rule.stages():
        if stage.kind is not StageKind.UNITS:
            continue
        title = f"rule {rule.name!r}, stage {stage.name!r}, tensor {name!r} of shape {shape}"
        _check_counts(title, stage.operands, shape, own)
        for operand in stage.operands:
            unit = operand.unit if isinstance(operand.unit, TensorUnit) else own
            if chosen is not None and unit.grid(shape).units != chosen[1].grid(shape).units:
                raise ValueError(
                    f"{title}: expected the units of a tensor to be the same everywhere, got "
                    f"{unit.name} for {operand.field!r} and {chosen[1].name} for {chosen[0]!r}; "
                    "use one of them"
                )
            chosen = chosen or (operand.field, unit)
    return (own if chosen is None else chosen[1]).grid(shape)


def _check_counts(
    title: str, operands: Sequence[Operand], shape: tuple[int, ...], own: TensorUnit
) -> None:
    counts = {operand.field: operand.unit.count(shape, own) for operand in operands}
    if len(set(counts.values())) > 1:
        first, *others = operands
        other = next(o for o in others if counts[o.field] != counts[first.field])
        raise ValueError(
            f"{title}: expected equally many units of all operands, got {counts[first.field]} of "
            f"{first.field!r} ({first.unit.name}) and {counts[other.field]} of {other.field!r} "
            f"({other.unit.name}); declare units that correspond"
        )
