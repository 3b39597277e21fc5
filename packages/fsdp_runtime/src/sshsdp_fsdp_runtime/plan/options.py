"""Choices that hold for a whole plan, each with its reason in one line."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a plan.

    Attributes:
        form: where gathered weights live when one host holds the whole group. ``shared``: the
            gathered buffer is one mapping that all ranks see, a gather moves nothing.
            ``private``: every rank gathers into its own slots, and frees them after use.
        average: ``mean`` divides summed gradients by the number of ranks, ``sum`` does not.
        slots: buffers that the groups of a model take turns with, for gathered weights
            (private form) and for gradients of one microbatch.
        poison: fill released and unused bytes with NaN, to find reads of them.
        skip_nonfinite: a step whose gradient norm is infinite or NaN changes nothing.
    """

    form: Literal["shared", "private"] = "shared"
    average: Literal["mean", "sum"] = "mean"
    slots: int = 2
    poison: bool = False
    skip_nonfinite: bool = True

    def __post_init__(self) -> None:
        if self.form not in ("shared", "private"):
            raise ValueError(f"expected form 'shared' or 'private', got {self.form!r}")
        if self.average not in ("mean", "sum"):
            raise ValueError(f"expected average 'mean' or 'sum', got {self.average!r}")
        if self.slots < 1:
            raise ValueError(f"expected at least 1 slot, got {self.slots}; 2 is the default")
        if self.poison and self.form == "shared":
            raise ValueError(
                "expected poison=False with form='shared', got True: a shared mapping is never "
                "released and holds every owner's weights; use form='private' to poison"
            )
