"""Integers of the plans."""


def check_sizes(**sizes: int) -> None:
    """Refuse negative sizes, by name."""
    for name, size in sizes.items():
        if size < 0:
            raise ValueError(f"expected {name} >= 0, got {size}")


def banded(shape: tuple[int, ...], band: int) -> tuple[int, ...]:
    """A logical shape [..., rows, blocks] where bands of rows share their scales.

    Raises:
        ValueError: for a band without rows.
    """
    if band < 1:
        raise ValueError(f"expected a band of at least 1 row, got {band}")
    *groups, rows, blocks = shape
    return *groups, -(-rows // band), blocks


def align_up(size: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-size // step) * step
