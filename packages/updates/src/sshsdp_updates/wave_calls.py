"""The calls of a rule's stages over one wave on one rank: views, and copies where there must be."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from sshsdp_shardchain import Box, Range
from sshsdp_updates.flat_state import FlatState
from sshsdp_updates.operand import Access, Operand, Operands
from sshsdp_updates.slot import HeldUnit, UnitBatch
from sshsdp_updates.stage import Stage, StageKind
from sshsdp_updates.step_counts import Lags
from sshsdp_updates.unit import ROW
from sshsdp_updates.wave_memory import Span, WaveMemory

Copy = tuple[Tensor, Tensor]
"""(target, source); the source may be broadcast."""


@dataclass
class Call:
    """One call of a stage.

    Attributes:
        lag: of the members' step counts.
        operands: what the function gets.
        before: copies that it needs done.
        after: copies that make its results arrive.
    """

    lag: int
    operands: Operands
    before: list[Copy] = field(default_factory=list)
    after: list[Copy] = field(default_factory=list)


@dataclass
class _Piece:
    """Consecutive elements of one fragment, with one span per operand."""

    lag: int
    dtype: torch.dtype
    spans: dict[str, Span]
    before: list[Copy] = field(default_factory=list)
    after: list[Copy] = field(default_factory=list)


class WaveCalls:
    """Makes calls of stages over the used members of one wave."""

    def __init__(self, memory: WaveMemory, flats: Sequence[FlatState], lags: Lags) -> None:
        """Work on `memory` and `flats`; members without a lag are left out."""
        self._memory = memory
        self._flats = flats
        self._lags = lags
        self._temporaries = {t.name for t in memory.plan.rule.temporaries()}

    def elements(self, stage: Stage) -> list[Call]:
        """Return calls over fragments, for stages over elements and those that reduce."""
        pieces = _joined(self._pieces(stage))
        calls = []
        for lag, dtype in dict.fromkeys((piece.lag, piece.dtype) for piece in pieces):
            mine = [piece for piece in pieces if (piece.lag, piece.dtype) == (lag, dtype)]
            views = {
                operand.field: tuple(piece.spans[operand.field].view() for piece in mine)
                for operand in stage.operands
            }
            calls.append(
                Call(
                    lag,
                    Operands(stage.name, views),
                    [copy for piece in mine for copy in piece.before],
                    [copy for piece in mine for copy in piece.after],
                )
            )
        return calls

    def units(self, stage: Stage, *, cut: bool) -> list[Call]:
        """Return calls over the units that run here: those held whole, or the cut ones."""
        batches = [
            (lag, batch.dtype, units, batch)
            for batch in self._memory.slot.batches
            if batch.cut is cut
            for lag, units in self._used(batch)
        ]
        calls = []
        for lag, dtype in dict.fromkeys((lag, dtype) for lag, dtype, _, _ in batches):
            views = {
                operand.field: tuple(
                    self._memory.batch(operand.field, units, batch.shape, dtype)
                    for other, of, units, batch in batches
                    if (other, of) == (lag, dtype)
                )
                for operand in stage.operands
            }
            calls.append(Call(lag, Operands(stage.name, views)))
        return calls

    def staged(self, stage: Stage) -> tuple[list[Copy], list[Copy]]:
        """Return copies into the room of a stage over units, and back, of what lives elsewhere."""
        before: list[Copy] = []
        after: list[Copy] = []
        for operand in stage.operands:
            if operand.field in self._temporaries:
                continue
            for item in self._memory.slot.held:
                if self._lag(item.index) is None:
                    continue
                pairs = list(self._to_flat(operand.field, item))
                if operand.access is not Access.WRITE:
                    before += [(room, flat) for flat, room in pairs]
                if operand.access is not Access.READ:
                    after += pairs
        return before, after

    def rows(self, stage: Stage) -> list[Call]:
        """Return calls over the rows of all units of the wave, held here or not."""
        found: dict[int, list[tuple[tuple[int, ...], list[int]]]] = {}
        for (lag, shape, _, _), indexes in groupby(self._memory.wave, key=self._row_key):
            if lag is not None:
                found.setdefault(lag, []).append((shape, list(indexes)))
        return [
            Call(
                lag,
                Operands(
                    stage.name,
                    {
                        operand.field: tuple(
                            self._memory.rows(operand.field, indexes) for _, indexes in groups
                        )
                        for operand in stage.operands
                    },
                    tuple(shape for shape, _ in groups),
                ),
            )
            for lag, groups in found.items()
        ]

    def is_used(self, index: int) -> bool:
        """Tell whether the tensor of a unit has a gradient."""
        return self._lag(index) is not None

    def _lag(self, index: int) -> int | None:
        unit = self._memory.plan.units[index]
        return self._lags[unit.list][unit.member]

    def _row_key(self, index: int) -> tuple[int | None, tuple[int, ...], int, int]:
        unit = self._memory.plan.units[index]
        return self._lag(index), unit.shape, unit.list, unit.member

    def _used(self, batch: UnitBatch) -> Iterator[tuple[int, list[int]]]:
        """Cut a batch where members are not used or have another step count."""
        for lag, indexes in groupby(batch.units, key=self._lag):
            if lag is not None:
                yield lag, list(indexes)

    def _pieces(self, stage: Stage) -> Iterator[_Piece]:
        held = self._memory.slot.held
        for _, items in groupby(held, key=lambda item: (item.unit.list, item.unit.member)):
            group = list(items)
            lag = self._lag(group[0].index)
            if lag is None:
                continue
            flat = self._flats[group[0].unit.list]
            dtype = flat.source.main_weight.dtype
            if group[0].unit.contiguous:
                for item in group:
                    piece = _Piece(lag, dtype, {})
                    for operand in stage.operands:
                        self._contiguous(piece, stage, operand, item)
                    yield piece
            else:
                piece = _Piece(lag, dtype, {})
                for operand in stage.operands:
                    self._strided(piece, stage, operand, group)
                yield piece

    def _contiguous(self, piece: _Piece, stage: Stage, operand: Operand, item: HeldUnit) -> None:
        """Give the piece of one contiguous unit its span of an operand."""
        memory, name, part = self._memory, operand.field, item.part
        if operand.unit == ROW and stage.kind is StageKind.REDUCE:
            piece.spans[name] = memory.part("sum", stage.name, item)
        elif operand.unit == ROW:
            span = memory.area("row", name, item, part.numel)
            piece.spans[name] = span
            for box in _row_boxes(item):
                piece.before.append(
                    (
                        span.box(box.position - part.start, box.count, box.length, box.length),
                        memory.per_row(name, item.index, box),
                    )
                )
        elif name in self._temporaries:
            piece.spans[name] = memory.part("unit", name, item)
        else:
            flat = self._flats[item.unit.list]
            fragment = flat.fragments[item.unit.member]
            start = fragment.local_offset + item.unit.strip.start + part.start - fragment.start
            piece.spans[name] = Span(flat.tensors[name], start, start + part.numel)

    def _strided(
        self, piece: _Piece, stage: Stage, operand: Operand, group: Sequence[HeldUnit]
    ) -> None:
        """Give the piece of a whole fragment, units interleaved, its span of an operand."""
        memory, name = self._memory, operand.field
        flat = self._flats[group[0].unit.list]
        fragment = flat.fragments[group[0].unit.member]
        reduced = operand.unit == ROW and stage.kind is StageKind.REDUCE
        if operand.unit != ROW and name not in self._temporaries:
            start = fragment.local_offset
            piece.spans[name] = Span(flat.tensors[name], start, start + fragment.numel)
            return
        span = memory.area("flat", stage.name if reduced else name, group[0], fragment.numel)
        piece.spans[name] = span
        for item in group:
            for box in item.unit.strip.boxes(Range(item.part.start, item.part.stop)):
                view = span.box(box.element - fragment.start, box.count, box.length, box.stride)
                if operand.unit == ROW and not reduced:
                    piece.before.append((view, memory.per_row(name, item.index, box)))
                    continue
                room = _boxed(memory.part(*_room(stage, name, reduced), item), item, box)
                if operand.access is not Access.WRITE:
                    piece.before.append((view, room))
                if operand.access is not Access.READ:
                    piece.after.append((room, view))

    def _to_flat(self, name: str, item: HeldUnit) -> Iterator[Copy]:
        """Yield (elements in the flat tensor, their room) for what this rank holds of a unit."""
        flat = self._flats[item.unit.list]
        fragment = flat.fragments[item.unit.member]
        span = self._memory.part("unit", name, item)
        for box in item.unit.strip.boxes(Range(item.part.start, item.part.stop)):
            start = fragment.local_offset + box.element - fragment.start
            whole = Span(flat.tensors[name], 0, flat.tensors[name].numel())
            yield whole.box(start, box.count, box.length, box.stride), _boxed(span, item, box)


def _room(stage: Stage, name: str, reduced: bool) -> tuple[str, str]:
    return ("sum", stage.name) if reduced else ("unit", name)


def _boxed(span: Span, item: HeldUnit, box: Box) -> Tensor:
    return span.box(box.position - item.part.start, box.count, box.length, box.length)


def _row_boxes(item: HeldUnit) -> Iterator[Box]:
    """Cut what a rank holds of a contiguous unit into (parts of) its rows."""
    rows = item.unit.strip.rows(item.unit.shape[-1])
    return rows.boxes(Range(item.part.start, item.part.stop))


def _joined(pieces: Iterator[_Piece]) -> list[_Piece]:
    """Join neighbours: fewer and longer tensors for the same elements."""
    result: list[_Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        if (
            last is not None
            and last.lag == piece.lag
            and all(last.spans[name].meets(span) for name, span in piece.spans.items())
        ):
            for name, span in piece.spans.items():
                last.spans[name] = last.spans[name].joined(span)
            last.before += piece.before
            last.after += piece.after
        else:
            result.append(piece)
    return result
