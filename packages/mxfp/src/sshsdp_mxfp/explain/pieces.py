"""Cuts a tensor into pieces of whole blocks, so that temporaries don't grow with it."""

from collections.abc import Iterator

from torch import Tensor

CHUNK = 1 << 20  # elements, 8 MiB as float64


def pieces(x: Tensor, block: tuple[int, int]) -> Iterator[Tensor]:
    """Views that cover the tensor; blocks are cut nowhere.

    Args:
        x: of at least one dimension, or two where a block has several rows.
        block: rows and columns of blocks in the last two dimensions.

    Yields:
        Views of about `CHUNK` elements, or of one block where that is more.
    """
    yield from _pieces(x, (*(1 for _ in x.shape[:-2]), *block)[-x.ndim :], 0)


def _pieces(x: Tensor, steps: tuple[int, ...], dim: int) -> Iterator[Tensor]:
    if x.numel() <= CHUNK or dim == x.ndim:
        yield x
        return
    step = x.numel() // x.shape[dim] * steps[dim]
    size = max(1, CHUNK // step) * steps[dim]
    for start in range(0, x.shape[dim], size):
        part = x.narrow(dim, start, min(size, x.shape[dim] - start))
        yield from _pieces(part, steps, dim + 1)
