"""What a stage declares about one field, and what its function is handed."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from sshsdp_updates.unit import ELEMENT, Unit


class Access(StrEnum):
    """What a stage does with an operand."""

    READ = "read"
    """Only read; its bits are the same afterwards."""
    WRITE = "write"
    """Every element is overwritten; the old contents are never looked at."""
    UPDATE = "update"
    """Read and written."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One field that a stage touches.

    Attributes:
        field: ``"main_weight"``, ``"main_grad"`` or the name of a state field or temporary of the
            rule.
        access: what the stage does with it.
        unit: how much of the logical tensor the stage needs at once.
    """

    field: str
    access: Access
    unit: Unit = ELEMENT


class UndeclaredOperandError(LookupError):
    """A stage asked for a field that it does not declare as an operand."""


class OperandAccessError(RuntimeError):
    """A stage did something else with an operand than it declares."""


class Operands:
    """What a stage works on, per declared field.

    ``operands["exp_avg"]`` is a tuple of tensors: 1-D fragments, or batches of units or of rows,
    as the kind of the stage says. All fields have equally many and those at one position have
    equal shapes: they are the same elements of the same tensors. A tuple, so that a result is
    written into the tensors and never bound beside them.

    Attributes:
        shapes: in a stage over rows, the shape of the units at each position, for means and scales;
            empty in others, where it is the tensor's own or doesn't matter.
    """

    __slots__ = ("_fragments", "_stage", "shapes")

    def __init__(
        self,
        stage: str,
        fragments: Mapping[str, tuple[Tensor, ...]],
        shapes: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        """Hand out `fragments`; `stage` is the name that messages use."""
        self._stage = stage
        self._fragments = fragments
        self.shapes = shapes

    def __getitem__(self, field: str) -> tuple[Tensor, ...]:
        """Return the fragments of `field`.

        Raises:
            UndeclaredOperandError: the stage does not declare `field`.
        """
        try:
            return self._fragments[field]
        except KeyError:
            declared = ", ".join(repr(name) for name in self._fragments)
            raise UndeclaredOperandError(
                f"stage {self._stage!r}: expected one of its declared operands ({declared}), "
                f"got {field!r}; add Operand({field!r}, ...) to the stage"
            ) from None
