"""Where everything of a wave lies in a rank's reserved buffer."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import torch

from sshsdp_shardchain import Part
from sshsdp_updates.blocks import Block, edge_of
from sshsdp_updates.plan import PlannedUnit, UpdatePlan
from sshsdp_updates.staged_fields import Room, StagedFields

ALIGN = 64
"""Bytes. Matrix products on differently aligned operands may round differently."""

Key = tuple[str, str, int]
"""(what, name of the field or stage, index of the unit)."""


@dataclass(frozen=True, slots=True)
class HeldUnit:
    """A unit that the rank holds a part of.

    Attributes:
        index: of the unit in the plan.
        unit: the unit.
        part: what the rank holds.
        here: whether stages over units run on this rank.
        edge: the block that this rank sums and that a later part has elements of.
    """

    index: int
    unit: PlannedUnit
    part: Part
    here: bool
    edge: Block | None


@dataclass(frozen=True, slots=True)
class UnitBatch:
    """Units of one shape that follow one another in the buffer and are worked on here.

    Attributes:
        units: their indexes in the plan.
        shape: of each.
        dtype: of main weights.
        cut: whether parts of them come from other ranks; then none is complete before.
    """

    units: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    cut: bool


@dataclass(frozen=True, slots=True)
class Slot:
    """The layout of one wave on one rank.

    Attributes:
        held: units of the wave that the rank holds a part of, in the order of the plan.
        batches: those that it works on.
        offsets: bytes relative to the slot. ``("unit", field, index)``, ``("sum", stage, index)``
            and ``("edge", stage, index)`` are of where position 0 of the unit is or would be;
            ``("row", field, index)`` and ``("flat", name, index)`` of the part's first element,
            the latter only of a tensor's first unit here, for all of them together.
        nbytes: end of the last area.
    """

    held: tuple[HeldUnit, ...]
    batches: tuple[UnitBatch, ...]
    offsets: dict[Key, int]
    nbytes: int


def padded(nbytes: int) -> int:
    """Round up to the alignment of areas."""
    return -(-nbytes // ALIGN) * ALIGN


def part_nbytes(fields: StagedFields, unit: PlannedUnit, part: Part, dtype: torch.dtype) -> int:
    """Return the room that one part takes on its holder."""
    here = unit.executor == part.rank
    nbytes = _room_nbytes(fields.units, unit.strip.numel if here else part.numel, dtype)
    nbytes += _room_nbytes((*fields.sums, *_per_element(fields, unit)), part.numel, dtype)
    edge = edge_of(part, unit.strip.numel, unit.shape[-1]) if fields.sums else None
    return nbytes + (_room_nbytes(fields.sums, edge.stop - edge.start, dtype) if edge else 0)


def _room_nbytes(rooms: tuple[Room, ...], numel: int, dtype: torch.dtype) -> int:
    return sum(padded(room.itemsize(dtype) * numel) for room in rooms)


def lay_out(plan: UpdatePlan, rank: int, wave: int) -> Slot:
    """Lay out one wave on one rank; any rank can do it for any other."""
    held = tuple(_held(plan, rank, plan.waves[wave]))
    here = sorted(
        (item for item in held if item.here),
        key=lambda item: (str(_dtype(plan, item)), item.unit.cut, item.unit.shape, item.index),
    )
    away = [item for item in held if not item.here]
    cursor = _Cursor()
    for room in plan.fields.units:
        for item in here:
            cursor.place(
                ("unit", room.name, item.index), _size(plan, room, item), item.unit.strip.numel
            )
        for item in away:
            size = _size(plan, room, item)
            cursor.place(("unit", room.name, item.index), size, item.part.numel, item.part.start)
    for room in plan.fields.sums:
        for item in held:
            size = _size(plan, room, item)
            cursor.place(("sum", room.name, item.index), size, item.part.numel, item.part.start)
            if item.edge:
                numel = item.edge.stop - item.edge.start
                cursor.place(("edge", room.name, item.index), size, numel, item.edge.start)
    _place_per_element(plan, held, cursor)
    batches = tuple(
        UnitBatch(tuple(item.index for item in items), shape, dtype, cut)
        for (dtype, cut, shape), items in groupby(
            here, key=lambda item: (_dtype(plan, item), item.unit.cut, item.unit.shape)
        )
    )
    return Slot(held, batches, cursor.offsets, cursor.end)


class _Cursor:
    def __init__(self) -> None:
        self.offsets: dict[Key, int] = {}
        self.end = 0

    def place(self, key: Key, itemsize: int, numel: int, start: int = 0) -> None:
        """Take an area for `numel` elements of which the first is element `start` of a unit."""
        self.offsets[key] = self.end - start * itemsize
        self.end += padded(itemsize * numel)


def _place_per_element(plan: UpdatePlan, held: tuple[HeldUnit, ...], cursor: _Cursor) -> None:
    """Take areas in the order of the tensor: one per tensor where units are not contiguous."""
    for (_, _), items in groupby(held, key=lambda item: (item.unit.list, item.unit.member)):
        group = list(items)
        rooms = _per_element(plan.fields, group[0].unit)
        if group[0].unit.contiguous:
            for item in group:
                for room in rooms:
                    key = ("row", room.name, item.index)
                    cursor.place(key, _size(plan, room, item), item.part.numel)
            continue
        for room in rooms:
            size = _size(plan, room, group[0])
            cursor.offsets["flat", room.name, group[0].index] = cursor.end
            cursor.end += sum(padded(size * item.part.numel) for item in group)


def _per_element(fields: StagedFields, unit: PlannedUnit) -> tuple[Room, ...]:
    return fields.rows if unit.contiguous else (*fields.rows, *fields.flat)


def _held(plan: UpdatePlan, rank: int, wave: range) -> Iterator[HeldUnit]:
    for index, part_index in plan.held(rank, wave):
        unit = plan.units[index]
        part = unit.parts[part_index]
        edge = edge_of(part, unit.strip.numel, unit.shape[-1]) if plan.fields.sums else None
        yield HeldUnit(index, unit, part, part.rank == unit.executor, edge)


def _dtype(plan: UpdatePlan, item: HeldUnit) -> torch.dtype:
    return plan.lists[item.unit.list].dtype


def _size(plan: UpdatePlan, room: Room, item: HeldUnit) -> int:
    return room.itemsize(_dtype(plan, item))
