"""Tensors of any number of dimensions as matrices, without copies."""

from collections.abc import Iterator

from torch import Tensor


def matrices(rows: int, *tensors: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """Views of corresponding matrices.

    Args:
        rows: of a block.
        tensors: [..., rows, columns] or [columns], any strides. The first one has a row for each
            row of the logical tensor; all have the same number of dimensions.

    Yields:
        The number of rows before the matrix, counted through all of them, and the views.
    """
    yield from _below(0, tensors, rows)


def _below(
    before: int, tensors: tuple[Tensor, ...], rows: int
) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
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
    yield before, tensors
