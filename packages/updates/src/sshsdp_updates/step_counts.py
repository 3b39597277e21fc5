"""How many steps each member has behind it, relative to the one that has most."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sshsdp_updates.flat_state import FlatState
from sshsdp_updates.rule import UpdateRule
from sshsdp_updates.stage import Scalars, scalars_of

Used = Sequence[bool]
"""Per member of a list: did it get a gradient this round."""
Lags = list[list[int | None]]
"""Per list and member: step count minus the newest member's; None where it is not used."""


class StepCounts:
    """The counts of the lists of one rule.

    Attributes:
        lags: of the last `arrange`; they outlive steps in which all members advance together.
        newest: the largest count of a used member.
    """

    lags: Lags
    newest: int

    def __init__(self, flats: Sequence[FlatState]) -> None:
        """Count for `flats`."""
        self._flats = flats
        self._increments: list[Tensor] = []
        self.lags = []
        self.newest = 0

    def arrange(self, used: Sequence[Used]) -> bool:
        """Look at the counts of the used members; return whether `lags` differ from before."""
        counts = [
            [int(count) if is_used else None for count, is_used in zip(steps, flags, strict=True)]
            for steps, flags in zip(
                (flat.steps.tolist() for flat in self._flats), used, strict=True
            )
        ]
        self.newest = max((c for row in counts for c in row if c is not None), default=0)
        lags = [[None if c is None else c - self.newest for c in row] for row in counts]
        if lags == self.lags:
            return False
        self.lags = lags
        self._increments = [
            torch.tensor([float(lag is not None) for lag in row], dtype=torch.float32)
            for row in lags
        ]
        return True

    def scalars(self, rule: UpdateRule, hyperparameters: Mapping[str, Any], lag: int) -> Scalars:
        """Return what a stage gets for members with this lag."""
        return scalars_of(hyperparameters, rule.hyperparameters().keys(), self.newest + lag + 1)

    def commit(self) -> None:
        """Count a step of the members that were used."""
        for flat, increment in zip(self._flats, self._increments, strict=True):
            flat.steps.add_(increment)
