"""Tensors of any number of dimensions as matrices, without copies."""

from collections.abc import Iterator

from torch import Tensor


def matrices(
    plain: Tensor, data: Tensor, grid: Tensor, rows: int
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Views of corresponding matrices.

    Args:
        plain: [..., rows, columns] or [columns], any strides.
        data: stored elements, the same dimensions.
        grid: scales, the same dimensions.
        rows: of a block.

    Yields:
        The number of rows before the matrix, counted through all of them, and the three views.
    """
    yield from _below(0, (plain, data, grid), rows)


def _below(
    before: int, tensors: tuple[Tensor, ...], rows: int
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    plain = tensors[0]
    if plain.dim() == 1:
        tensors = tuple(tensor.unsqueeze(0) for tensor in tensors)
    elif plain.dim() > 2:
        if plain.shape[-2] % rows or not all(tensor.is_contiguous() for tensor in tensors):
            step = plain[0].numel() // max(1, plain.shape[-1])
            for index, inner in enumerate(zip(*tensors, strict=True)):
                yield from _below(before + index * step, inner, rows)
            return
        tensors = tuple(tensor.flatten(0, -2) for tensor in tensors)
    yield before, tensors[0], tensors[1], tensors[2]
