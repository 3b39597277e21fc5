"""Block formats: how a tensor is cut, scaled and rounded. Plain frozen data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from sshsdp_mxfp.elements import E2M1, E2M3, E3M2, E4M3, E5M2, Element

Rule = Literal["rceil", "floor", "ceil", "even"]
Ragged = Literal["refuse", "partial"]


@dataclass(frozen=True)
class Format:
    """What quantization makes of a tensor; use `MXFP8`, `MXFP6` or `MXFP4`.

    Attributes:
        block: rows and columns of the last two dimensions that share one scale: (1, 32) along rows,
            (32, 1) along columns, (32, 32) for both at once. Other sizes work too; GEMM kernels
            want 32 along the contracted dimension.
        element: what the elements become.
        rule: how a scale follows from the largest magnitude of its block, amax. With `largest` the
            largest value of the element format and e its exponent:

            - "rceil": the smallest power of two s with amax <= largest * s. Nothing saturates.
            - "floor": 2^(floor(log2(amax)) - e). Maxima above `largest` times it saturate.
            - "ceil": 2^(ceil(log2(amax)) - e). Nothing saturates; up to one bit of range is lost.
            - "even": as "floor", after amax is rounded to the mantissa of the element, halves up.
        ragged: what happens to sizes that are no multiple of the block. "refuse": an error.
            "partial": blocks at the edge are smaller, as if zeros followed that aren't stored.
    """

    block: tuple[int, int]
    element: Element
    rule: Rule = "rceil"
    ragged: Ragged = "refuse"

    elements: ClassVar[tuple[Element, ...]] = ()

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not self.elements:
            raise TypeError(f"expected a concrete format, got {name}; use MXFP8, MXFP6 or MXFP4")
        if self.element not in self.elements:
            known = " or ".join(element.name.upper() for element in self.elements)
            raise ValueError(f"expected elements of {known} in {name}, got {self.element!r}")
        if not _is_block(self.block):
            raise ValueError(
                f"expected a block of two positive sizes, a tuple as in (32, 32), got "
                f"{self.block!r}"
            )
        if self.element.per_byte > 1 and self.block[1] % self.element.per_byte and self.columns > 1:
            raise ValueError(
                f"expected an even number of columns, or one, in a block of {self.element}, whose "
                f"elements share bytes in pairs; got {block_text(self.block)}"
            )
        for field, value, choices in (
            ("rule", self.rule, get_args(Rule)),
            ("policy for ragged edges", self.ragged, get_args(Ragged)),
        ):
            if value not in choices:
                raise ValueError(f"expected a {field} of {', '.join(choices)}, got {value!r}")

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.block[0]

    @property
    def columns(self) -> int:
        """Columns of a block."""
        return self.block[1]

    @property
    def bits_per_element(self) -> float:
        """Storage, scales included, where blocks are whole."""
        return 8 / self.element.per_byte + 8 / (self.rows * self.columns)

    def grid_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the scales of a tensor: the last two sizes count blocks.

        Raises:
            ValueError: if blocks don't fit the shape.
        """
        self.check(shape)
        *leading, last = shape
        columns = -(-last // self.columns)
        if not leading:
            return (columns,)
        return (*leading[:-1], -(-leading[-1] // self.rows), columns)

    def data_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the stored elements: the logical one, but for two elements per byte."""
        self.check(shape)
        return (*shape[:-1], -(-shape[-1] // self.element.per_byte))

    def check(self, shape: Sequence[int]) -> None:
        """Raise if a tensor of this shape can't be cut into blocks.

        Raises:
            ValueError: for too few dimensions, or sizes that need ragged="partial".
        """
        needed = 1 if self.rows == 1 else 2
        if len(shape) < needed:
            raise ValueError(
                f"expected at least {needed} dimension{'s'[: needed - 1]} for blocks of "
                f"{block_text(self.block)}, got shape {list(shape)}"
            )
        ends = list(zip(shape[-needed:], self.block[-needed:], strict=True))
        if self.ragged == "refuse" and any(size % step for size, step in ends):
            padded = [-(-size // step) * step for size, step in ends]
            raise ValueError(
                f"expected sizes that are multiples of the block {block_text(self.block)}, got "
                f"shape {list(shape)}; pad it to {[*shape[:-needed], *padded]}, or allow smaller "
                f'blocks at the edges with ragged="partial"'
            )

    def __str__(self) -> str:
        return f"{self.element} in blocks of {block_text(self.block)}, {self.rule}"


@dataclass(frozen=True)
class MXFP8(Format):
    """Elements of 8 bits, E4M3 or E5M2; see `Format`."""

    block: tuple[int, int] = (1, 32)
    element: Element = E4M3
    elements: ClassVar[tuple[Element, ...]] = (E4M3, E5M2)


@dataclass(frozen=True)
class MXFP6(Format):
    """Elements of 6 bits, E2M3 or E3M2, one per byte; see `Format`."""

    block: tuple[int, int] = (1, 32)
    element: Element = E2M3
    elements: ClassVar[tuple[Element, ...]] = (E2M3, E3M2)


@dataclass(frozen=True)
class MXFP4(Format):
    """Elements of 4 bits, E2M1, two per byte; see `Format`."""

    block: tuple[int, int] = (1, 32)
    element: Element = E2M1
    elements: ClassVar[tuple[Element, ...]] = (E2M1,)


def block_text(block: tuple[int, int]) -> str:
    """A block as in "32x32"."""
    return "x".join(map(str, block))


def _is_block(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(size, int) and size > 0 for size in value)
    )
