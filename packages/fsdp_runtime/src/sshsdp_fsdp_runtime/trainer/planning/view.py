"""What of a plan is shown."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Whose part of a plan is shown, and how much of it.

    Attributes:
        source: the model, as it was named.
        rank: whose view of trees, chains, traffic and schedules.
        microbatches: per step.
        schedules: whether to list operations.
    """

    source: str
    rank: int
    microbatches: int
    schedules: bool
