"""Rectangles of a logical tensor that a flat fragment of it covers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """A hyper-rectangle that is contiguous in the row-major tensor it is cut from.

    Attributes:
        offsets: first index of the box in every dimension of the tensor.
        sizes: extent of the box in every dimension, all positive.
        start: flat index, relative to the tensor, of the box's first element.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int

    @property
    def numel(self) -> int:
        """Number of elements; the box covers flat ``[start, start + numel)`` of the tensor."""
        return math.prod(self.sizes)


def boxes(shape: Sequence[int], start: int, stop: int) -> tuple[Box, ...]:
    """Split the flat half-open range ``[start, stop)`` of a row-major tensor into rectangles.

    The rectangles are disjoint, cover the range, and are given in flat order; a tensor of d >= 1
    dimensions needs at most 2d - 1 of them. An empty range has none; the element of a 0-d tensor
    is ``Box((), (), 0)``.

    Args:
        shape: logical shape of the tensor.
        start: first element, relative to the tensor.
        stop: one after the last element, relative to the tensor.

    Raises:
        ValueError: if the range does not lie within the tensor.
    """
    numel = math.prod(shape)
    if not 0 <= start <= stop <= numel:
        raise ValueError(
            f"expected a range within the {numel} elements of a tensor of shape {tuple(shape)}, "
            f"got [{start}, {stop}); give start and stop relative to that tensor"
        )
    if start == stop:
        return ()
    if not shape:
        return (Box((), (), 0),)
    return tuple(_split(tuple(shape), start, stop, (), 0))


def _split(
    shape: tuple[int, ...], start: int, stop: int, outer: tuple[int, ...], base: int
) -> Iterator[Box]:
    """Boxes of a non-empty range of the sub-tensor at index `outer`, whose flat start is `base`."""
    inner = shape[1:]
    row = math.prod(inner)
    first, head = divmod(start, row)
    last, tail = divmod(stop, row)
    if first == last:
        yield from _split(inner, head, tail, (*outer, first), base + first * row)
        return
    if head:
        yield from _split(inner, head, row, (*outer, first), base + first * row)
        first += 1
    if first < last:
        yield Box(
            offsets=(*outer, first, *(0 for _ in inner)),
            sizes=(*(1 for _ in outer), last - first, *inner),
            start=base + first * row,
        )
    if tail:
        yield from _split(inner, 0, tail, (*outer, last), base + last * row)
