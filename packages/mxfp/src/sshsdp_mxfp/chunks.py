"""Cuts tensors into chunks of whole blocks, so that temporaries stay small and in cache."""

from collections.abc import Iterator

from torch import Tensor

CHUNK = 1 << 18  # elements: 1 MiB in float32, inside a core's own cache


def chunks(
    plain: Tensor, data: Tensor, codes: Tensor, block: tuple[int, int]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Views of matching parts, blocks as dimensions.

    Args:
        plain: [..., columns], any strides.
        data: the same shape, any strides.
        codes: one element per block.
        block: rows and columns of a block.

    Yields:
        plain and data as [row blocks, block rows, column blocks, block columns], codes as
        [row blocks, 1, column blocks, 1].
    """
    rows, columns = block
    for whole, elements, grid in _matrices(plain, data, codes):
        width = min(whole.shape[1], max(columns, CHUNK // rows // columns * columns))
        height = max(rows, CHUNK // max(width, 1) // rows * rows)
        for top in range(0, whole.shape[0], height):
            for left in range(0, whole.shape[1], width):
                part = slice(top, top + height), slice(left, left + width)
                tile = (
                    slice(top // rows, (top + height) // rows),
                    slice(left // columns, (left + width) // columns),
                )
                yield (
                    _by_block(whole[part], block),
                    _by_block(elements[part], block),
                    grid[tile].unsqueeze(1).unsqueeze(-1),
                )


def _matrices(plain: Tensor, data: Tensor, codes: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same tensors as matrices; never copies, whatever the strides."""
    tensors = (plain, data, codes)
    if plain.dim() == 1:
        yield tuple(tensor.unsqueeze(0) for tensor in tensors)
    elif plain.dim() == 2:
        yield tensors
    elif all(tensor.is_contiguous() for tensor in tensors):
        yield tuple(tensor.flatten(0, -2) for tensor in tensors)
    else:
        for parts in zip(*tensors, strict=True):
            yield from _matrices(*parts)


def _by_block(matrix: Tensor, block: tuple[int, int]) -> Tensor:
    (height, width), (rows, columns) = matrix.shape, block
    return matrix.view(height // rows, rows, width // columns, columns)
