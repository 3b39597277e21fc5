"""Units: how much of a logical tensor a stage works on at once."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral

from sshsdp_shardchain import Units

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UnitGrid:
    """The units of one tensor and the shape that each is worked on in.

    Attributes:
        units: which elements.
        shapes: one per unit; products are the units' sizes. The last dimension is a row.
    """

    units: Units
    shapes: tuple[Shape, ...]

    @property
    def count(self) -> int:
        """Number of units."""
        return len(self.shapes)

    @property
    def rows(self) -> int:
        """Rows of all units together."""
        return sum(row_count(shape) for shape in self.shapes)


def row_count(shape: Shape) -> int:
    """Rows of a unit: 1 for a vector."""
    return math.prod(shape[:-1])


class Unit(ABC):
    """A view of the logical tensor; shapes always mean the whole tensor, never a fragment."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What messages call it."""

    @abstractmethod
    def count(self, shape: Shape, own: "TensorUnit") -> int:
        """How many there are in a tensor of `shape` whose own unit is `own`."""


@dataclass(frozen=True, slots=True)
class _Element(Unit):
    name: str = "element"

    def count(self, shape: Shape, own: "TensorUnit") -> int:  # noqa: ARG002
        return math.prod(shape)


@dataclass(frozen=True, slots=True)
class _Row(Unit):
    name: str = "row"

    def count(self, shape: Shape, own: "TensorUnit") -> int:
        return own.grid(shape).rows


@dataclass(frozen=True, slots=True)
class _Tensor(Unit):
    name: str = "tensor"

    def count(self, shape: Shape, own: "TensorUnit") -> int:  # noqa: ARG002
        return 1


@dataclass(frozen=True, slots=True)
class _Own(Unit):
    name: str = "own"

    def count(self, shape: Shape, own: "TensorUnit") -> int:
        return own.grid(shape).count


ELEMENT: Unit = _Element()
"""One element: any cut of a tensor is legal, nothing has to travel before the stage runs."""
ROW: Unit = _Row()
"""One value for each row of the member's own unit; every rank has all of them."""
TENSOR: Unit = _Tensor()
"""One value for the tensor as a whole, like a count; every rank has it."""
OWN: Unit = _Own()
"""The member's own unit: a head, an expert or the whole tensor, whatever the member says."""


class TensorUnit(Unit):
    """A unit that a member of a list can have: it cuts the whole tensor."""

    @staticmethod
    def expect(value: object, where: str) -> "TensorUnit":
        """Return `value` if it is such a unit.

        Args:
            value: what a caller gave as one.
            where: what it was given to, for the message.

        Raises:
            TypeError: it is something else; the text says what to give.
        """
        if not isinstance(value, TensorUnit):
            raise TypeError(
                f"{where}: expected a unit that cuts a tensor, got {value!r}; give heads(size), "
                "columns(size), pieces(sizes), experts() or whole() of sshsdp_updates"
            )
        return value

    def count(self, shape: Shape, own: "TensorUnit") -> int:  # noqa: ARG002
        """How many there are in a tensor of `shape`."""
        return self.grid(shape).count

    def grid(self, shape: Shape) -> UnitGrid:
        """Cut a tensor.

        Raises:
            ValueError: a tensor of this shape has no such units.
        """
        return _grid(self, tuple(shape))

    @abstractmethod
    def cut(self, shape: Shape) -> UnitGrid:
        """Cut a tensor; `grid` remembers the result."""


@lru_cache(maxsize=4096)
def _grid(unit: TensorUnit, shape: Shape) -> UnitGrid:
    return unit.cut(shape)


@dataclass(frozen=True, slots=True)
class _Whole(TensorUnit):
    shape: Shape | None = None

    @property
    def name(self) -> str:
        return "whole()" if self.shape is None else f"whole({self.shape})"

    def cut(self, shape: Shape) -> UnitGrid:
        numel = math.prod(shape)
        worked = self.shape
        if worked is None:
            worked = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (numel,)
        if math.prod(worked) != numel or not worked:
            raise ValueError(
                f"expected a shape of {numel} elements for a tensor of shape {shape}, got "
                f"{self.name}; use another shape, or whole() for the first dimension by the rest"
            )
        return UnitGrid(Units.pieces([numel]), (tuple(worked),))


@dataclass(frozen=True, slots=True)
class _Rows(TensorUnit):
    """Blocks of rows of the last two dimensions; dimensions before them are a batch."""

    name: str
    sizes: tuple[int, ...] | None = None
    size: int | None = None

    def cut(self, shape: Shape) -> UnitGrid:
        batch, rows, columns = _matrices(self, shape)
        sizes = _sizes(self, shape, rows, self.sizes, self.size) * batch
        units = Units.pieces([size * columns for size in sizes])
        return UnitGrid(units, tuple((size, columns) for size in sizes))


@dataclass(frozen=True, slots=True)
class _Columns(TensorUnit):
    """Blocks of columns of the last two dimensions; dimensions before them are a batch."""

    name: str
    sizes: tuple[int, ...] | None = None
    size: int | None = None

    def cut(self, shape: Shape) -> UnitGrid:
        batch, rows, columns = _matrices(self, shape)
        sizes = _sizes(self, shape, columns, self.sizes, self.size)
        units = Units.columns(rows, sizes, batch)
        return UnitGrid(units, tuple((rows, size) for size in sizes) * batch)


def whole(shape: Sequence[int] | None = None) -> TensorUnit:
    """One unit, the whole tensor.

    Args:
        shape: to work on it in. None leaves vectors and matrices as they are and turns tensors of
            more dimensions into the first by all others (a convolution's filters).
    """
    return _Whole(None if shape is None else _integers(shape))


def heads(size: int) -> TensorUnit:
    """Equal blocks of `size` rows: the heads of a query, key or value projection.

    The head's size is given and not their number: it stays right where a tensor is split.
    """
    return _Rows(f"heads({_positive(size)})", size=size)


def pieces(sizes: Sequence[int]) -> TensorUnit:
    """Blocks of rows of unequal sizes, for example queries, keys and values in one tensor."""
    rows = tuple(_positive(size) for size in _integers(sizes))
    return _Rows(f"pieces({', '.join(map(str, rows))})", sizes=rows)


def columns(size: int | Sequence[int]) -> TensorUnit:
    """Blocks of columns: the heads of an output projection; equal, or of these sizes.

    Their elements are not contiguous, so temporaries are kept head by head: see `Strip`.
    """
    if not isinstance(size, Sequence):
        return _Columns(f"columns({_positive(size)})", size=size)
    widths = tuple(_positive(width) for width in _integers(size))
    return _Columns(f"columns({', '.join(map(str, widths))})", sizes=widths)


def experts() -> TensorUnit:
    """The matrices of a tensor whose dimensions before the last two count them."""
    return _Rows("experts()")


def _positive(size: int) -> int:
    if not isinstance(size, Integral) or size < 1:
        raise ValueError(
            f"expected units of 1 or more rows or columns, got {size!r}; give their number as an "
            "int"
        )
    return size


def _integers(sizes: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(sizes, Sequence) or not all(isinstance(size, Integral) for size in sizes):
        raise TypeError(f"expected a list of ints, got {sizes!r}; give them as in [64, 64, 32]")
    return tuple(sizes)


def _matrices(unit: Unit, shape: Shape) -> tuple[int, int, int]:
    if len(shape) < 2:
        raise ValueError(
            f"expected a tensor of 2 or more dimensions for {unit.name}, got shape {shape}; "
            "use whole()"
        )
    return math.prod(shape[:-2]), shape[-2], shape[-1]


def _sizes(
    unit: Unit, shape: Shape, total: int, sizes: tuple[int, ...] | None, size: int | None
) -> tuple[int, ...]:
    """Sizes of the blocks of one matrix along a dimension of `total`."""
    if sizes is None:
        size = total if size is None else size
        sizes = (size,) * (total // size if size else 0)
    if sum(sizes) != total:
        raise ValueError(
            f"expected {unit.name} to cover {total} rows or columns of a tensor of shape {shape}, "
            f"got {sum(sizes)}; the sizes must add up to it"
        )
    return sizes
