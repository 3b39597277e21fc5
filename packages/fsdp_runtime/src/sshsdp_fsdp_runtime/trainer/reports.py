"""Reports: what a run tells about itself, and who may listen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step, over all ranks.

    Attributes:
        step: from 1.
        loss: mean over the global batch, nats per token.
        lr: learning rate of the step.
        grad_norm: global 2-norm before clipping.
        tokens: trained on since the run's first step.
        seconds: that this step took.
        tokens_per_s: of this step.
        rss_bytes: sum over ranks.
        pss_bytes: sum over ranks.
        skipped: the gradients were not finite and nothing was updated.
        nonfinite: of a skipped step: what was not finite, in words.
        max_wait_s: longest that a rank waited for others in this step, all waits together.
        last_rank: the rank that waited least: the others waited for it.
    """

    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens: int
    seconds: float
    tokens_per_s: float
    rss_bytes: int
    pss_bytes: int
    skipped: bool
    nonfinite: tuple[str, ...]
    max_wait_s: float
    last_rank: int


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """The loss on the held-out tokens after `step` steps, nats per token."""

    step: int
    val_loss: float


class Listener(Protocol):
    """Gets a run's reports, on rank 0."""

    def step(self, report: StepReport) -> None:
        """After every step."""
        ...

    def validation(self, report: ValidationReport) -> None:
        """After every evaluation."""
        ...

    def close(self) -> None:
        """Once, at the end."""
        ...


class Audience:
    """Hands every report to all listeners.

    Args:
        listeners: none on the ranks that don't report.
    """

    def __init__(self, listeners: Sequence[Listener] = ()) -> None:
        self._listeners = tuple(listeners)

    def step(self, report: StepReport) -> None:
        """To all."""
        for listener in self._listeners:
            listener.step(report)

    def validation(self, report: ValidationReport) -> None:
        """To all."""
        for listener in self._listeners:
            listener.validation(report)

    def close(self) -> None:
        """To all."""
        for listener in self._listeners:
            listener.close()
