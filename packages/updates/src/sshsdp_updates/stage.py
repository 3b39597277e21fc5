"""A stage: one function over declared operands."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import Tensor

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


def scalars_of(hyperparameters: Mapping[str, Any], names: Iterable[str], step: int) -> Scalars:
    """Return what a stage gets: the values of `names` as they are now, and `step`.

    A tensor becomes the number that it holds, so that nobody writes a schedule's value.
    """
    values = {name: hyperparameters[name] for name in names}
    numbers = {n: v.item() if isinstance(v, Tensor) else v for n, v in values.items()}
    return MappingProxyType({**numbers, "step": step})
