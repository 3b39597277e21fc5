"""Quantization of a tensor that several processes hold in flat fragments, equal to the whole's.

A block that a fragment cuts needs the maximum over all of its elements. Every holder takes the
maxima of what it has, they are combined by max, and then each holder casts exactly its elements.
Elements never travel: of a cut block one number does. Maxima travel as the integers that floats are
made of, which have the same order and keep NaN on top; so any integer max, in any order, gives the
bits of the whole tensor.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from sshsdp_mxfp import scales
from sshsdp_mxfp.caster import Caster
from sshsdp_mxfp.fragment import Fragment
from sshsdp_mxfp.geometry import Part, Rectangle, parts
from sshsdp_mxfp.quantize import check_input
from sshsdp_mxfp.rounding import Stochastic
from sshsdp_mxfp.tensor import SCALE

Combine = Callable[[Tensor, Fragment], None]


@dataclass(frozen=True, eq=False)
class QuantizedFragment:
    """A fragment's elements, and the scales of all blocks that it touches.

    Attributes:
        data: elements [fragment.numel], or half as many bytes where two share one.
        scale: float8_e8m0fnu of shape `fragment.grid_shape`; other holders of a cut band get equal
            ones.
        fragment: which part of which tensor.
    """

    data: Tensor
    scale: Tensor
    fragment: Fragment

    def __post_init__(self) -> None:
        fragment = self.fragment
        element = fragment.format.element
        stored = (fragment.numel // element.per_byte,)
        expected = ((element.dtype, stored), (SCALE, fragment.grid_shape))
        got = tuple((part.dtype, tuple(part.shape)) for part in (self.data, self.scale))
        if got != expected:
            raise ValueError(f"expected data and scales of {expected}, got {got}")

    @classmethod
    def empty(cls, fragment: Fragment) -> Self:
        """Undefined contents, to quantize into."""
        element = fragment.format.element
        data = torch.empty(fragment.numel // element.per_byte, dtype=torch.uint8)
        scale = torch.empty(fragment.grid_shape, dtype=torch.uint8)
        return cls(data.view(element.dtype), scale.view(SCALE), fragment)


def partial_maxima(x: Tensor, fragment: Fragment) -> Tensor:
    """Largest magnitudes of what a fragment holds of each block.

    Args:
        x: the elements [fragment.numel], float32, float64, bfloat16 or float16 on the CPU.
        fragment: where they belong.

    Returns:
        Bits of floats without sign of shape `fragment.grid_shape`: int64 for float64, int32 for all
        others. Zero, the neutral element of max, for blocks of a cut band that aren't touched.

    Raises:
        ValueError: for another dtype, device or number of elements.
    """
    _check(x, fragment)
    caster = Caster(fragment.format, x.dtype, None)
    integer = torch.int64 if x.dtype == torch.float64 else torch.int32
    grid = torch.zeros(fragment.grid_shape, dtype=integer)
    for piece in _pieces(fragment):
        target = grid[piece.grid]
        maxima = caster.maxima(caster.widen(piece.of(x), piece.part))
        torch.maximum(target, maxima[:, 0, :, 0], out=target)
    return grid


def cast_fragment(
    x: Tensor,
    fragment: Fragment,
    maxima: Tensor,
    *,
    rounding: Stochastic | None = None,
    out: QuantizedFragment | None = None,
) -> QuantizedFragment:
    """Quantize a fragment, given the maxima of whole blocks.

    Args:
        x: as of `partial_maxima`.
        fragment: where the elements belong.
        maxima: as from `partial_maxima`, of which the cut bands were combined by max with those of
            all other holders.
        rounding: as of `quantize`; the numbers belong to places in the logical tensor.
        out: where to write to.

    Returns:
        `out`, or a new fragment: the bytes that quantizing the whole tensor gives.

    Raises:
        ValueError: as of `partial_maxima`, or if `maxima` or `out` don't suit the fragment.
    """
    _check(x, fragment)
    integer = torch.int64 if x.dtype == torch.float64 else torch.int32
    if maxima.dtype != integer or tuple(maxima.shape) != fragment.grid_shape:
        raise ValueError(
            f"expected maxima of {integer} and shape {list(fragment.grid_shape)}, as "
            f"partial_maxima makes them, got {maxima.dtype} and {list(maxima.shape)}"
        )
    if out is None:
        out = QuantizedFragment.empty(fragment)
    elif out.fragment != fragment:
        raise ValueError(f"expected out for {fragment}, got one for {out.fragment}")
    if not fragment.numel:
        return out
    caster = Caster(fragment.format, x.dtype, rounding)
    codes = scales.codes_of(maxima, fragment.format)
    out.scale.view(torch.uint8).copy_(codes)
    for piece in _pieces(fragment):
        wide = caster.widen(piece.of(x), piece.part)
        tile = codes[piece.grid].unsqueeze(1).unsqueeze(-1)
        caster.cast(wide, tile, piece.of(out.data, fragment.format.element.per_byte), piece.place)
    return out


def quantize_fragment(
    x: Tensor,
    fragment: Fragment,
    combine: Combine,
    *,
    rounding: Stochastic | None = None,
    out: QuantizedFragment | None = None,
) -> QuantizedFragment:
    """`partial_maxima`, the given combination, and `cast_fragment`.

    Args:
        x: as of `partial_maxima`.
        fragment: where the elements belong.
        combine: called once, also for an empty fragment, with the maxima and the fragment; replaces
            the rows of `fragment.cut_bands` by the maxima over all holders, in place.
        rounding: as of `cast_fragment`.
        out: as of `cast_fragment`.
    """
    maxima = partial_maxima(x, fragment)
    combine(maxima, fragment)
    return cast_fragment(x, fragment, maxima, rounding=rounding, out=out)


@dataclass(frozen=True)
class _Piece:
    """A part of a fragment that has equal blocks.

    Attributes:
        part: inside its matrix.
        place: the same in the logical tensor, rows counted through all matrices.
        grid: rows and columns of the fragment's maxima and scales.
        start: of the rectangle that holds the part, in the flat fragment.
        rectangle: inside the same matrix.
    """

    part: Part
    place: Rectangle
    grid: tuple[slice, slice]
    start: int
    rectangle: Rectangle

    def of(self, flat: Tensor, per_item: int = 1) -> Tensor:
        """The part as a matrix, a view of a flat tensor with so many elements per item."""
        around, part = self.rectangle, self.part
        stop = self.start + around.height * around.width
        matrix = flat[self.start // per_item : stop // per_item].view(around.height, -1)
        left, right = part.left - around.left, part.right - around.left
        top, bottom = part.top - around.top, part.bottom - around.top
        return matrix[top:bottom, left // per_item : right // per_item]


def _pieces(fragment: Fragment) -> Iterator[_Piece]:
    start, first = 0, fragment.bands.start
    for rows, bands, rectangle in fragment.rectangles():
        for part in parts(rectangle, fragment.format.block, fragment.format.element.per_byte):
            place = Rectangle(rows + part.top, rows + part.bottom, part.left, part.right)
            down = slice(bands + part.tiles.top - first, bands + part.tiles.bottom - first)
            across = slice(part.tiles.left, part.tiles.right)
            yield _Piece(part, place, (down, across), start, rectangle)
        start += rectangle.height * rectangle.width


def _check(x: Tensor, fragment: Fragment) -> None:
    check_input(x)
    if tuple(x.shape) != (fragment.numel,):
        raise ValueError(
            f"expected a flat tensor of {fragment.numel} elements for {fragment.start}:"
            f"{fragment.stop} of {list(fragment.shape)}, got shape {list(x.shape)}"
        )
