"""Runs the stages of one rule over all lists that share it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sshsdp_updates.flat_state import FlatState
from sshsdp_updates.operand import Operands
from sshsdp_updates.rule import UpdateRule
from sshsdp_updates.runs import runs
from sshsdp_updates.stage import Stage, scalars_of

Used = Sequence[bool]
"""Per member of a list: did it get a gradient this round."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Runs that one call of each stage handles: equal step count, dtype and device."""

    lag: int  # step count relative to the newest member's, so that it outlives the step
    operands: tuple[Operands, ...]  # one per stage


class UpdateGroup:
    """One rule and its lists.

    Slices of the flat tensors are made when the used members or the differences between their
    step counts change, which in most trainings is once.
    """

    def __init__(self, rule: UpdateRule, flats: Sequence[FlatState]) -> None:
        """Prepare the stages of `rule`; all `flats` were allocated for it."""
        self.rule = rule
        self.flats = tuple(flats)
        self._stages = rule.stages()
        self._lags: list[list[int | None]] | None = None
        self._batches: tuple[_Batch, ...] = ()
        self._increments: list[Tensor] = []

    def run(self, hyperparameters: Mapping[str, Any], used: Sequence[Used]) -> None:
        """Run every stage once over the used members; counts of steps stay as they are.

        Args:
            hyperparameters: of the param group, as they are now.
            used: per list of this group.
        """
        newest = self._arrange(used)
        names = self.rule.hyperparameters().keys()
        for index, stage in enumerate(self._stages):
            for batch in self._batches:
                scalars = scalars_of(hyperparameters, names, newest + batch.lag + 1)
                stage.function(batch.operands[index], scalars)

    def commit(self) -> None:
        """Count the step that `run` has done."""
        for flat, increment in zip(self.flats, self._increments, strict=True):
            flat.steps.add_(increment)

    def _arrange(self, used: Sequence[Used]) -> int:
        """Bring the batches up to date and return the newest member's step count."""
        counts = [
            [int(count) if is_used else None for count, is_used in zip(steps, flags, strict=True)]
            for steps, flags in zip((flat.steps.tolist() for flat in self.flats), used, strict=True)
        ]
        newest = max((count for row in counts for count in row if count is not None), default=0)
        lags = [[None if count is None else count - newest for count in row] for row in counts]
        if lags != self._lags:
            self._lags = lags
            self._batches = self._slice(lags)
            self._increments = [
                torch.tensor([float(lag is not None) for lag in row], dtype=torch.float32)
                for row in lags
            ]
        return newest

    def _slice(self, lags: Sequence[Sequence[int | None]]) -> tuple[_Batch, ...]:
        pieces: dict[tuple[int, torch.dtype, torch.device], list[tuple[FlatState, slice]]] = {}
        for flat, row in zip(self.flats, lags, strict=True):
            weight = flat.source.main_weight
            for run in runs(flat.fragments, row):
                key = (run.key, weight.dtype, weight.device)
                pieces.setdefault(key, []).append((flat, slice(run.start, run.stop)))
        return tuple(
            _Batch(lag, tuple(_operands(stage, parts) for stage in self._stages))
            for (lag, _, _), parts in pieces.items()
        )


def _operands(stage: Stage, parts: Sequence[tuple[FlatState, slice]]) -> Operands:
    return Operands(
        stage.name,
        {
            operand.field: tuple(flat.tensors[operand.field][where] for flat, where in parts)
            for operand in stage.operands
        },
    )
