"""What cuts through units cost."""


def elements_outside(start: int, numel: int, unit: int, chunk: int) -> int:
    """Elements that lie outside the largest part of their unit, over all units of a tensor.

    Args:
        start: of the tensor, relative to the list.
        numel: its elements.
        unit: elements that are worked on together, from its first element on.
        chunk: the list is cut at every multiple of it.
    """
    if unit == 1 or not numel:
        return 0
    border = start - start % chunk + chunk
    if border >= start + numel:
        return 0
    rest = numel % unit
    whole = start + numel - rest  # one past the last whole unit
    outside = _outside_one(whole, whole + rest, chunk)
    if border >= whole:
        return outside
    if unit > chunk:
        return outside + sum(
            _outside_one(first, first + unit, chunk) for first in range(start, whole, unit)
        )
    inside, step = (border - start) % unit, chunk % unit
    if not inside and not step:
        return outside
    # At most one border lies inside a unit; lists have 100,000s of borders.
    for _ in range(border, whole, chunk):
        outside += inside if inside + inside < unit else unit - inside
        inside += step
        if inside >= unit:
            inside -= unit
    return outside


def _outside_one(first: int, last: int, chunk: int) -> int:
    """Elements of one unit outside its largest part."""
    border = first - first % chunk + chunk
    if border >= last:
        return 0
    if border + chunk < last:
        return last - first - chunk  # a whole chunk is inside, and no part is larger
    return min(border - first, last - border)
