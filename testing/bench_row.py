"""One measured value of a comparison, and what many numbers are summed up to."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Row:
    """One measured value.

    Attributes:
        name: "what/workload".
        value: the result.
        unit: e.g. "x" for ratios.
        goal: what it should reach; None: for information.
        better: which direction is good.
        details: every number behind the value, as JSON.
    """

    name: str
    value: float
    unit: str
    goal: float | None
    better: Literal["lower", "higher"]
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def missed(self) -> bool:
        """Whether there is a goal and the value is on its wrong side (a NaN is)."""
        if self.goal is None:
            return False
        reached = self.value <= self.goal if self.better == "lower" else self.value >= self.goal
        return not reached


def summary(values: Sequence[float]) -> dict[str, float | int]:
    """Median, spread (interquartile range), extremes and count of some values."""
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else None
    return {
        "median": statistics.median(values),
        "spread": quartiles[2] - quartiles[0] if quartiles else 0.0,
        "min": min(values),
        "max": max(values),
        "count": len(values),
    }
