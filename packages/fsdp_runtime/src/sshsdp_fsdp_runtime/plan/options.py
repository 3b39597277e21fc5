"""Choices that hold for a whole plan, each with its reason in one line."""

from dataclasses import dataclass
from numbers import Real
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of a plan.

    Attributes:
        form: where gathered weights live. ``shared``: the gathered buffer is one mapping that all
            ranks of the group see, so that a gather moves nothing; the group must be on one node.
            ``private``: every rank gathers into its own slots, and frees them after use.
            ``auto``: shared where it can be.
        average: ``mean`` divides summed gradients by the number of ranks, ``sum`` does not.
        slots: buffers that the groups of a model take turns with, for gathered weights
            (private form) and for gradients of one microbatch. With more of them a rank runs
            further ahead of a slower one before it waits.
        padding_budget: padding allowed in a list whose optimizer works on units, as a share of
            its elements, so that fewer of them are cut.
        poison: fill released and unused bytes with NaN, to find reads of them.
        skip_nonfinite: a step whose gradient norm is infinite or NaN changes nothing.
    """

    form: Literal["auto", "shared", "private"] = "auto"
    average: Literal["mean", "sum"] = "mean"
    slots: int = 2
    padding_budget: float = 0.03
    poison: bool = False
    skip_nonfinite: bool = True

    def __post_init__(self) -> None:
        if self.form not in ("auto", "shared", "private"):
            raise ValueError(f"expected form 'auto', 'shared' or 'private', got {self.form!r}")
        if self.average not in ("mean", "sum"):
            raise ValueError(f"expected average 'mean' or 'sum', got {self.average!r}")
        if not isinstance(self.slots, int) or self.slots < 1:
            raise ValueError(
                f"expected slots to be an int of at least 1, got {self.slots!r}; 2 is the default"
            )
        if not isinstance(self.padding_budget, Real) or not self.padding_budget >= 0:
            raise ValueError(
                f"expected a padding budget of 0 or more, got {self.padding_budget!r}; 0.03 "
                "allows 3%"
            )
        for name in ("poison", "skip_nonfinite"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"expected {name} to be True or False, got {getattr(self, name)!r}; leave it "
                    "out for the default"
                )
        if self.poison and self.form == "shared":
            raise ValueError(
                "expected poison=False with form='shared', got True: a shared mapping is never "
                "released and holds every owner's weights; use form='private' to poison"
            )
