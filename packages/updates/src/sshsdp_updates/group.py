"""Runs a rule of stages over elements: one call per stage over all lists that share it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sshsdp_updates.flat_state import FlatState
from sshsdp_updates.operand import Operands
from sshsdp_updates.plan import UpdatePlan
from sshsdp_updates.rule import UpdateRule
from sshsdp_updates.runs import runs
from sshsdp_updates.stage import Stage
from sshsdp_updates.step_counts import Lags, StepCounts, Used


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
                stage.function(batch.operands[index], scalars)

    def commit(self) -> None:
        """Count the step that `run` has done."""
        self._counts.commit()

    def _slice(self, lags: Lags) -> tuple[_Batch, ...]:
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
