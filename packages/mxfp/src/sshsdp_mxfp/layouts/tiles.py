"""Cuts matrices of scales, so that index tensors stay small."""

from collections.abc import Iterator

CHUNK = 1 << 16  # cells; an index takes 8 bytes per cell


def tiles(rows: int, blocks: int) -> Iterator[tuple[range, range]]:
    """Ranges of rows and of blocks that cover a matrix, of at most CHUNK cells each."""
    width = min(blocks, CHUNK)
    height = max(1, CHUNK // max(width, 1))
    for left in range(0, blocks, max(width, 1)):
        for top in range(0, rows, height):
            yield (
                range(top, min(top + height, rows)),
                range(left, min(left + width, blocks)),
            )
