"""The global gradient norm: measured once, used for the finite check and for clipping."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sshsdp_updates.flat_state import FlatState
from sshsdp_updates.labels import labelled
from sshsdp_updates.protocols import Reducer
from sshsdp_updates.runs import runs
from sshsdp_updates.step_counts import Used
from sshsdp_updates.terms import StepTerms

_ROW = 1024
# Elements per partial norm. A float32 sum of squares over 19M elements in one call is off by 1e-3
# (few accumulators); over rows of this size, added in float64, by 1e-6 at worst, equally fast.
# Squares that overflow float32 count as inf: they would overflow a second moment as well.


class GradientNorm:
    """The 2-norm over all used members of all lists and ranks.

    What was measured stands until :meth:`changed`; whether to measure again is then the same
    decision on every rank, since measuring communicates.
    """

    def __init__(self, flats: Sequence[FlatState], reducer: Reducer, terms: StepTerms) -> None:
        """Measure main gradients of `flats`, summing over ranks with `reducer`; compare `terms`."""
        self._flats = flats
        self._reducer = reducer
        self._terms = terms
        self._used: Sequence[Used] | None = None
        self._runs: list[Tensor] = []
        self._rows: list[Tensor] = []  # (k, _ROW) each, or one short row
        self._norm: float | None = None
        self._finite: bool | None = None

    def changed(self) -> None:
        """Forget what was measured: gradients hold other values now."""
        self._norm = self._finite = None

    def value(self, used: Sequence[Used]) -> float:
        """Return the norm; collective where it is not known yet."""
        self._select(used)
        if self._norm is None:
            with labelled("sshsdp::gradient norm"):
                self._norm = self._measure()
            self._finite = math.isfinite(self._norm)
        return self._norm

    def finite(self, used: Sequence[Used]) -> bool:
        """Tell whether the norm is finite; clipping does not make this unknown."""
        self._select(used)
        if self._finite is None:
            self.value(used)
        return bool(self._finite)

    def clip(self, used: Sequence[Used], max_norm: float) -> float:
        """Scale gradients in place so that the norm is at most `max_norm`; one pass, if any.

        The coefficient is that of ``torch.nn.utils.clip_grad_norm_``:
        ``min(1, max_norm / (norm + 1e-6))``. A norm that is not finite leaves them as they are.

        Returns:
            The norm before scaling.
        """
        norm = self.value(used)
        coefficient = max_norm / (norm + 1e-6)
        if math.isfinite(norm) and coefficient < 1:
            for run in self._runs:
                run.mul_(coefficient)
            self._norm = None
        return norm

    def _select(self, used: Sequence[Used]) -> None:
        """Slice the gradients of the used members, if they are not those of the last time."""
        if used == self._used:
            return
        self.changed()
        self._used = used
        self._runs, self._rows = [], []
        for flat, flags in zip(self._flats, used, strict=True):
            keys = [0 if is_used else None for is_used in flags]
            slices = [
                flat.source.main_grad[run.start : run.stop] for run in runs(flat.fragments, keys)
            ]
            self._runs += slices
            if flat.source.counted:
                self._rows += [rows for run in slices for rows in _rows(run)]

    def _measure(self) -> float:
        sums = torch.tensor([0.0, *self._terms.summands()], dtype=torch.float64)
        for rows in self._rows:
            sums[0] += torch.linalg.vector_norm(rows, dim=1).double().square().sum().cpu()
        self._reducer.all_reduce(sums, "sum")
        squares, *terms = sums.tolist()
        self._terms.check(terms)
        return math.sqrt(squares)


def _rows(run: Tensor) -> list[Tensor]:
    """Return `run` as a matrix of full rows and one short row, without those that are empty."""
    whole = run.numel() // _ROW * _ROW
    return [rows for rows in (run[:whole].view(-1, _ROW), run[whole:].view(1, -1)) if rows.numel()]
