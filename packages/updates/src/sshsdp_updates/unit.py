"""The unit of an operand: how many elements of the logical tensor are worked on together."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unit:
    """A view of the logical tensor that a stage needs whole.

    Attributes:
        name: what messages call it.
    """

    name: str


ELEMENT = Unit("element")
"""One element: any cut of a tensor is legal, nothing has to travel before the stage runs."""
