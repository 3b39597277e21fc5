"""Runs a rule of stages over elements: one call per stage over all lists that share it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sshsdp_updates.flat_state import FlatState
from sshsdp_updates.labels import labelled
from sshsdp_updates.operand import Operands
from sshsdp_updates.plan import UpdatePlan
from sshsdp_updates.rule import UpdateRule
from sshsdp_updates.runs import runs
from sshsdp_updates.stage import Stage
from sshsdp_updates.step_counts import Lags, StepCounts, Used
from sshsdp_updates.unit import TENSOR


@dataclass(frozen=True, slots=True)
class _Piece:
    """A range of the tensors of one list; where fields are kept per tensor, of one member."""

    flat: FlatState
    elements: slice
    member: int | None = None

    def of(self, field: str) -> Tensor:
        """Return the piece of a field."""
        if self.member is not None and self.flat.is_replicated(field):
            return self.flat.value_of(field, self.member)
        return self.flat.tensors[field][self.elements]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Runs that one call of each stage handles: equal step count, dtype and device."""

    lag: int
    operands: tuple[Operands, ...]  # one per stage


class UpdateGroup:
    """One rule and its lists.

    Slices of the flat tensors are made when the used members or the differences between their
    step counts change, which in most trainings is once.

    Attributes:
        plan: None: nothing is exchanged, and nothing has to be planned.
    """

    plan: UpdatePlan | None = None

    def __init__(self, rule: UpdateRule, flats: Sequence[FlatState]) -> None:
        """Prepare the stages of `rule`; all `flats` were allocated for it."""
        self.rule = rule
        self.flats = tuple(flats)
        self._stages = rule.stages()
        self._by_member = any(field.unit == TENSOR for field in rule.state_fields())
        self._labels = [f"sshsdp::{rule.name} {stage.name}" for stage in self._stages]
        self._counts = StepCounts(self.flats)
        self._batches: tuple[_Batch, ...] = ()

    def run(self, hyperparameters: Mapping[str, Any], used: Sequence[Used]) -> None:
        """Run every stage once over the used members; counts of steps stay as they are.

        Args:
            hyperparameters: of the param group, as they are now.
            used: per list of this group.
        """
        if self._counts.arrange(used):
            self._batches = self._slice(self._counts.lags)
        for index, stage in enumerate(self._stages):
            for batch in self._batches:
                scalars = self._counts.scalars(self.rule, hyperparameters, batch.lag)
                with labelled(self._labels[index]):
                    stage.function(batch.operands[index], scalars)

    def commit(self) -> None:
        """Count the step that `run` has done."""
        self._counts.commit()

    def _slice(self, lags: Lags) -> tuple[_Batch, ...]:
        cut = _members if self._by_member else _runs
        pieces: dict[tuple[int, torch.dtype, torch.device], list[_Piece]] = {}
        for flat, row in zip(self.flats, lags, strict=True):
            weight = flat.source.main_weight
            for lag, piece in cut(flat, row):
                pieces.setdefault((lag, weight.dtype, weight.device), []).append(piece)
        return tuple(
            _Batch(lag, tuple(_operands(stage, parts) for stage in self._stages))
            for (lag, _, _), parts in pieces.items()
        )


def _runs(flat: FlatState, lags: Sequence[int | None]) -> Iterator[tuple[int, _Piece]]:
    for run in runs(flat.fragments, lags):
        yield run.key, _Piece(flat, slice(run.start, run.stop))


def _members(flat: FlatState, lags: Sequence[int | None]) -> Iterator[tuple[int, _Piece]]:
    for index, (fragment, lag) in enumerate(zip(flat.fragments, lags, strict=True)):
        if lag is not None:
            start = fragment.local_offset
            yield lag, _Piece(flat, slice(start, start + fragment.numel), index)


def _operands(stage: Stage, pieces: Sequence[_Piece]) -> Operands:
    return Operands(
        stage.name,
        {
            operand.field: tuple(piece.of(operand.field) for piece in pieces)
            for operand in stage.operands
        },
    )
