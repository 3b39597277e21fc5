"""Lengths cut into even parts."""

ALIGNMENT = 64
"""Bytes: parts start at whole cache lines, so that two ranks don't write to the same one."""


def even_slices(numel: int, count: int, align: int) -> list[tuple[int, int]]:
    """(start, length) of `count` slices that together are `numel` long.

    Slices start at multiples of `align`; the last ones may be shorter or empty.
    """
    return [even_slice(numel, count, align, index) for index in range(count)]


def even_slice(numel: int, count: int, align: int, index: int) -> tuple[int, int]:
    """The slice with this index; see `even_slices`."""
    if align < 1:
        raise ValueError(f"expected chunk_align >= 1, got {align}")
    step = -(-numel // (count * align)) * align
    start = min(step * index, numel)
    return start, min(step, numel - start)


def turns(longest: int, chunk_bytes: int) -> int:
    """In how many turns the longest of some transfers is made, and all others with it."""
    if chunk_bytes < ALIGNMENT:
        raise ValueError(f"expected chunk_bytes >= {ALIGNMENT}, got {chunk_bytes}")
    return -(-longest // chunk_bytes)


def padded(nbytes: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
