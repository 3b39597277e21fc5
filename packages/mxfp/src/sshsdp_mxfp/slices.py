"""Slices of a quantized tensor: from logical elements to stored bytes and scales."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

Index = slice | int | tuple[slice | int, ...]


@dataclass(frozen=True)
class Slices:
    """The same part of the elements, of the scales and of the logical shape."""

    data: tuple[slice | int, ...]
    grid: tuple[slice | int, ...]
    shape: torch.Size


def resolve(index: Index, shape: Sequence[int], steps: Sequence[int], per_byte: int) -> Slices:
    """Translate an index of whole blocks.

    Args:
        index: slices and integers of the first dimensions, in logical elements.
        shape: the logical shape.
        steps: block sizes per dimension, 1 where there are none.
        per_byte: elements per stored item in the last dimension.

    Raises:
        ValueError: if the index cuts a block, has steps or more entries than dimensions.
        IndexError: if an integer is out of range.
    """
    entries = index if isinstance(index, tuple) else (index,)
    if len(entries) > len(shape):
        raise ValueError(f"expected at most {len(shape)} indices, got {len(entries)}")
    last = len(shape) - 1
    data: list[slice | int] = []
    grid: list[slice | int] = []
    sizes: list[int] = []
    for axis, size in enumerate(shape):
        entry = entries[axis] if axis < len(entries) else slice(None)
        if isinstance(entry, int):
            place = _integer(entry, axis, size, max(steps[axis], 1 if axis < last else 2))
            data.append(place)
            grid.append(place)
            continue
        start, stop = _range(entry, axis, size, steps[axis], per_byte if axis == last else 1)
        grid.append(slice(start // steps[axis], -(-stop // steps[axis])))
        scale = per_byte if axis == last else 1
        data.append(slice(start // scale, -(-stop // scale)))
        sizes.append(stop - start)
    return Slices(tuple(data), tuple(grid), torch.Size(sizes))


def _integer(entry: int, axis: int, size: int, step: int) -> int:
    if not -size <= entry < size:
        raise IndexError(f"expected an index below {size} in dimension {axis}, got {entry}")
    place = entry % size
    if step > 1:
        raise ValueError(
            f"expected a slice in dimension {axis}, whose elements share scales or bytes, got "
            f"{entry}; use [{place // step * step}:{(place // step + 1) * step}]"
        )
    return place


def _range(entry: slice, axis: int, size: int, step: int, per_byte: int) -> tuple[int, int]:
    """Start and stop of a slice that cuts no block and no byte."""
    if entry.step not in (None, 1):
        raise ValueError(f"expected slices of step 1, got {entry.step} in dimension {axis}")
    start, stop, _ = entry.indices(size)
    stop = max(start, stop)
    unit = max(step, per_byte)
    if start % unit or (stop % unit and stop != size):
        raise ValueError(
            f"expected slices that begin and end at multiples of {unit} or at the end of "
            f"dimension {axis}, got {start}:{stop} of {size}"
        )
    return start, stop
