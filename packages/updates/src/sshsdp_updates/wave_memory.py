"""The memory of one wave on one rank: areas of the reserved buffer, and values per row."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sshsdp_shardchain import Box
from sshsdp_updates.flat_state import FlatState
from sshsdp_updates.plan import UpdatePlan
from sshsdp_updates.slot import HeldUnit, Slot, padded
from sshsdp_updates.staged_fields import Room
from sshsdp_updates.unit import row_count


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive elements of a 1-D tensor."""

    base: Tensor
    start: int
    stop: int

    def view(self) -> Tensor:
        """Return the elements."""
        return self.base[self.start : self.stop]

    def box(self, start: int, count: int, length: int, stride: int) -> Tensor:
        """Return `count` rows of `length` elements, `stride` apart, from element `start` on."""
        return self.base.as_strided(
            (count, length), (stride, 1), self.base.storage_offset() + self.start + start
        )

    def meets(self, other: "Span") -> bool:
        """Tell whether `other` follows without a gap."""
        return self.base is other.base and self.stop == other.start

    def joined(self, other: "Span") -> "Span":
        """Return both as one."""
        return Span(self.base, self.start, other.stop)


class WaveMemory:
    """Views of a slot, by what they are for.

    Attributes:
        plan: the plan.
        wave: units of the wave.
        slot: where things lie.
    """

    def __init__(
        self,
        plan: UpdatePlan,
        wave: range,
        slot: Slot,
        buffer: Tensor,
        flats: Sequence[FlatState],
    ) -> None:
        """Look at `buffer`, the slot's bytes; values per row get memory of their own."""
        self.plan = plan
        self.wave = wave
        self.slot = slot
        self._buffer = buffer
        self._flats = flats
        self._typed: dict[torch.dtype, Tensor] = {}
        self._rooms = {("unit", room.name): room for room in plan.fields.units} | {
            ("sum", room.name): room for room in plan.fields.sums
        }
        self._rooms |= {("edge", room.name): room for room in plan.fields.sums}
        self._rooms |= {("row", room.name): room for room in plan.fields.rows}
        self._rooms |= {("flat", r.name): r for r in (*plan.fields.rows, *plan.fields.flat)}
        self._row_starts = self._starts()
        self._row_values = {
            (room.name, dtype): torch.zeros(
                self._row_starts[wave.stop], dtype=room.dtype or dtype, device=buffer.device
            )
            for room in plan.fields.row_temporaries
            for dtype in {flat.source.main_weight.dtype for flat in flats}
        }

    @property
    def device(self) -> torch.device:
        """Where it all is."""
        return self._buffer.device

    def part(self, what: str, name: str, item: HeldUnit) -> Span:
        """Return the span of what this rank holds of a unit."""
        return self._positions(what, name, item, item.part.start, item.part.stop)

    def edge(self, stage: str, item: HeldUnit) -> Span:
        """Return the span of the block that ends in another rank's part."""
        assert item.edge is not None
        return self._positions("edge", stage, item, item.edge.start, item.edge.stop)

    def area(self, what: str, name: str, item: HeldUnit, numel: int) -> Span:
        """Return the first `numel` elements of an area in the order of the tensor."""
        return self._positions(what, name, item, 0, numel)

    def batch(
        self, name: str, units: Sequence[int], shape: tuple[int, ...], main: torch.dtype
    ) -> Tensor:
        """Return (k, *shape): the room of units of one batch that follow one another."""
        dtype = self._dtype(self._rooms["unit", name], main)
        numel = self.plan.units[units[0]].strip.numel
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        typed = self._as(dtype)
        return typed.as_strided(
            (len(units), *shape),
            (padded(numel * dtype.itemsize) // dtype.itemsize, *strides),
            typed.storage_offset() + self.slot.offsets["unit", name, units[0]] // dtype.itemsize,
        )

    def rows(self, name: str, units: Sequence[int]) -> Tensor:
        """Return (k, rows): the values per row of units of one tensor that follow one another."""
        values, start = self._row_storage(name, units[0])
        rows = row_count(self.plan.units[units[0]].shape)
        return values[start : start + len(units) * rows].view(len(units), rows)

    def per_row(self, name: str, index: int, box: Box) -> Tensor:
        """Return (count, 1): the values of the rows in which the rows of a box lie."""
        values, start = self._row_storage(name, index)
        first = start + box.position // self.plan.units[index].shape[-1]
        return values[first : first + box.count].unsqueeze(1)

    def _row_storage(self, name: str, index: int) -> tuple[Tensor, int]:
        """Return the tensor that holds the values of a unit, and where they begin."""
        unit = self.plan.units[index]
        flat = self._flats[unit.list]
        if flat.is_replicated(name):
            return flat.tensors[name], flat.row_offsets[unit.member] + unit.first_row
        return self._row_values[name, flat.source.main_weight.dtype], self._row_starts[index]

    def _starts(self) -> dict[int, int]:
        starts, end = {}, 0
        for index in self.wave:
            starts[index] = end
            end += row_count(self.plan.units[index].shape)
        starts[self.wave.stop] = end
        return starts

    def _positions(self, what: str, name: str, item: HeldUnit, start: int, stop: int) -> Span:
        dtype = self._dtype(self._rooms[what, name], self._main(item))
        offset = self.slot.offsets[what, name, item.index] // dtype.itemsize
        return Span(self._as(dtype), offset + start, offset + stop)

    def _main(self, item: HeldUnit) -> torch.dtype:
        return self.plan.lists[item.unit.list].dtype

    def _dtype(self, room: Room, main: torch.dtype) -> torch.dtype:
        return room.dtype or main

    def _as(self, dtype: torch.dtype) -> Tensor:
        if dtype not in self._typed:
            self._typed[dtype] = self._buffer.view(dtype)
        return self._typed[dtype]
