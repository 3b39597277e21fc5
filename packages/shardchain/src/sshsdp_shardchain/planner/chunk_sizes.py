"""How large a chunk may be, and which sizes are worth a try."""

from collections.abc import Iterable, Sequence
from math import lcm

from .item import Item

_EVEN_STEPS = 8


def bounds(items: Iterable[Item], chunks: int, align: int, budget: float) -> tuple[int, int]:
    """The smallest chunk that holds everything and the largest that the budget allows."""
    size = numel = 0
    for item in items:
        size += item.size
        numel += item.numel
    low = -(-size // (chunks * align)) * align
    high = (numel + int(numel * budget)) // (chunks * align) * align
    return low, max(low, high)


def chunk_sizes(items: Sequence[Item], low: int, high: int, align: int) -> list[int]:
    """Sizes to try, the most promising first, from ``low`` to ``high``.

    A run of tensors whose unit divides the chunk needs one gap at most, whatever its length; so
    multiples of units, and of what the weightiest of them have in common.
    """
    volume = _volumes(items, align)
    by_volume = sorted(volume, key=lambda step: (-volume[step], step))
    sizes = [low, high]
    for order in (by_volume, sorted(volume), sorted(volume, reverse=True)):
        sizes += _multiples(_common(order, low, high, align), low, high)
    for step in by_volume:
        sizes += _multiples(step, low, high)
        parts = range(-(-step // high), step // low + 1) if step > low else ()
        sizes += [-(-step // (part * align)) * align for part in parts]  # chunks to a unit
    width = (high - low) // align
    steps = min(_EVEN_STEPS, width)
    sizes += [low + width * step // steps * align for step in range(1, steps)]
    return list(dict.fromkeys(sizes))


def _volumes(items: Iterable[Item], align: int) -> dict[int, int]:
    """Bytes in units of each size; a size is one that chunks can be a multiple of."""
    volume: dict[int, int] = {}
    for item in items:
        for numel, unit, bytes_per_element in item.shapes:
            if unit > 1:
                step = lcm(unit, align)
                volume[step] = volume.get(step, 0) + numel * bytes_per_element
    return volume


def _common(steps: Iterable[int], low: int, high: int, align: int) -> int:
    """The least common multiple of as many steps as the bounds leave room for, greedily."""
    common = align
    for step in steps:
        joint = lcm(common, step)
        if -(-low // joint) * joint <= high:
            common = joint
    return common


def _multiples(step: int, low: int, high: int) -> range:
    """The first few multiples from ``low`` to ``high``."""
    first = -(-low // step) * step
    return range(first, min(high, first + 2 * step) + 1, step)
