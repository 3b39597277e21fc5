"""A stage: one function over declared operands."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from torch import Tensor

from sshsdp_updates.operand import Operand, Operands

Scalars = Mapping[str, Any]
"""Read-only numbers of a call: the hyperparameters of the group as they are now, and ``step``
(int, 1 in the first update of a member)."""


class StageKind(StrEnum):
    """What a stage's function is handed, and therefore what has to be where it runs."""

    ELEMENTS = "elements"
    """1-D fragments, wherever they are. An operand per ROW is only read, and is handed out once
    per element; one per TENSOR is 0-d, and then there is one fragment per tensor, also an empty
    one, so that all ranks do the same to it."""
    UNITS = "units"
    """Whole units: (k, *shape) each. Runs on one rank per unit; parts that others hold come before
    and what was written goes back after."""
    REDUCE = "reduce"
    """1-D fragments; its one written operand is per ROW. What the function writes there, in
    float64 per element, is summed over each row, and every rank gets the sums."""
    ROWS = "rows"
    """Values per row, (k, rows) each: all ranks do the same."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One function of an update rule and everything it may touch.

    Attributes:
        name: what messages call it.
        function: called with the operands' fragments and the scalars; writes in place and returns
            nothing.
        operands: the fields that the function reads and writes; no other can be reached.
        kind: what the function is handed.
    """

    name: str
    function: Callable[[Operands, Scalars], None]
    operands: tuple[Operand, ...]
    kind: StageKind = StageKind.ELEMENTS


def scalars_of(hyperparameters: Mapping[str, Any], names: Iterable[str], step: int) -> Scalars:
    """Return what a stage gets: the values of `names` as they are now, and `step`.

    A tensor becomes the number that it holds, so that nobody writes a schedule's value.
    """
    values = {name: hyperparameters[name] for name in names}
    numbers = {n: v.item() if isinstance(v, Tensor) else v for n, v in values.items()}
    return MappingProxyType({**numbers, "step": step})
