"""A stage: one function over declared operands."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sshsdp_updates.operand import Operand, Operands

Scalars = Mapping[str, Any]
"""Read-only numbers of a call: the hyperparameters of the group as they are now, and ``step``
(int, 1 in the first update of a member)."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One function of an update rule and everything it may touch.

    Attributes:
        name: what messages call it.
        function: called with the operands' fragments and the scalars; writes in place and returns
            nothing.
        operands: the fields that the function reads and writes; no other can be reached.
    """

    name: str
    function: Callable[[Operands, Scalars], None]
    operands: tuple[Operand, ...]
