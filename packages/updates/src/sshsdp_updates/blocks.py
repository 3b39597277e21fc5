"""Fixed blocks of rows: what a sum is made of, wherever a tensor is cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sshsdp_shardchain import Part

BLOCK = 4096
"""Elements of a block. A row's last block is shorter. Blocks are summed whole, on the rank that
holds their first element, and their sums added in order: a cut moves elements, and no result."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a unit.

    Attributes:
        index: within the unit.
        start: first position, relative to the unit.
        stop: one past the last position.
    """

    index: int
    start: int
    stop: int


def blocks_per_row(length: int) -> int:
    """Return how many blocks a row of `length` elements has."""
    return -(-length // BLOCK)


def block_at(position: int, length: int) -> Block:
    """Return the block around a position of a unit with rows of `length` elements."""
    row, into = divmod(position, length)
    index = into // BLOCK
    start = row * length + index * BLOCK
    stop = min(start + BLOCK, (row + 1) * length)
    return Block(row * blocks_per_row(length) + index, start, stop)


def edge_of(part: Part, numel: int, length: int) -> Block | None:
    """Return the block that begins in `part` and ends in a later one, if there is one.

    Args:
        part: of a unit of `numel` elements.
        numel: elements of the unit.
        length: of its rows.
    """
    if part.stop == numel:
        return None
    block = block_at(part.stop - 1, length)
    return block if block.stop > part.stop and block.start >= part.start else None


def lent(parts: Sequence[Part], length: int) -> list[tuple[Part, Part, Block, int]]:
    """Return what holders lend to those who sum the blocks.

    Args:
        parts: of a unit, by position.
        length: of its rows.

    Returns:
        (lender, borrower, block, stop): the lender's elements from its start to `stop` belong to
        `block`, which begins in the borrower's part.
    """
    result = []
    owner = parts[0]
    for before, part in pairwise(parts):
        block = block_at(part.start, length)
        if before.start <= block.start:
            owner = before
        if block.start < part.start:
            result.append((part, owner, block, min(block.stop, part.stop)))
    return result
