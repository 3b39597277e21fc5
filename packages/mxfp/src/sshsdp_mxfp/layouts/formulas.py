"""Where each scale lies: index arithmetic of the layouts, and nothing else.

Every layout of one matrix of scales is a pair of functions: ``X_offset`` says in which cell of the
flat storage the scale of a row and a block lies, ``X_position`` says whose scale a cell holds. They
use only ``+ * // %`` on non-negative values and call nothing, so the same source works on Python
integers and on integer tensors (an offset broadcasts a column of rows against a row of blocks). In
a Triton kernel the same source runs, compiled or interpreted, given a scope that Triton accepts:

    scope = {"tl": triton.language, "Index": triton.language.tensor}
    code = formulas.packed_offset.__code__
    packed_offset = triton.jit(types.FunctionType(code, scope, "packed_offset"))

Kernels pass 64-bit rows or cells where storage may exceed 2^31 cells.

A row is an index along M or N, a block one along K. Positions in padding are beyond the matrix: the
caller compares them with its sizes. A row's part and a block's part of an offset are summed last,
so that broadcasting costs one addition per cell.
"""

from typing import TypeVar

from torch import Tensor

Index = TypeVar("Index", int, Tensor)


def plain_offset(row: Index, block: Index, blocks: int) -> Index:
    """Row-major cells."""
    return row * blocks + block


def plain_position(cell: Index, blocks: int) -> tuple[Index, Index]:
    """The row and block of a row-major cell."""
    return cell // blocks, cell % blocks


def packed_offset(row: Index, block: Index, pitch: int) -> Index:
    """Bytes of words that hold four blocks each, words column by column.

    Args:
        row: along M or N.
        block: along K; the lowest block of a word is its lowest byte.
        pitch: words from one column to the next.
    """
    return row * 4 + (block // 4 * (pitch * 4) + block % 4)


def packed_position(byte: Index, pitch: int) -> tuple[Index, Index]:
    """The row and block of a byte; rows from the matrix's end to `pitch` are padding."""
    word = byte // 4
    return word % pitch, word // pitch * 4 + byte % 4


def float32_offset(row: Index, block: Index, pitch: int) -> Index:
    """Floats column by column, `pitch` floats apart."""
    return row + block * pitch


def float32_position(cell: Index, pitch: int) -> tuple[Index, Index]:
    """The row and block of a float; rows from the matrix's end to `pitch` are padding."""
    return cell % pitch, cell // pitch


def swizzled_offset(row: Index, block: Index, tiles: int) -> Index:
    """Bytes of tiles of 128 rows by 4 blocks, 512 bytes each, tiles row by row.

    In a tile, the 32 rows of a quarter lie 16 bytes apart, the four quarters side by side.

    Args:
        row: along M or N.
        block: along K.
        tiles: tiles in a row of tiles.
    """
    return (row // 128 * (tiles * 512) + row % 32 * 16 + row % 128 // 32 * 4) + (
        block // 4 * 512 + block % 4
    )


def swizzled_position(byte: Index, tiles: int) -> tuple[Index, Index]:
    """The row and block of a byte."""
    tile = byte // 512
    row = tile // tiles * 128 + byte % 16 // 4 * 32 + byte % 512 // 16
    return row, tile % tiles * 4 + byte % 4
