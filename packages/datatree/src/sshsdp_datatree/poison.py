"""Which bytes of a tree are poisoned, and with what."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from .allocation import POISON

if TYPE_CHECKING:
    from .node import DataNode

# These have a single NaN, the negative zero of other formats.
_FNUZ = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def uncovered(node: "DataNode") -> Iterator[tuple[int, int]]:
    """Byte ranges of a node that none of its children covers, relative to the root."""
    end = node.root_offset
    for child in sorted(node.children, key=lambda child: child.byte_offset):
        if child.root_offset > end:
            yield end, child.root_offset
        end = max(end, child.root_offset + child.nbytes)
    stop = node.root_offset + node.nbytes
    if stop > end:
        yield end, stop


def poison_spans(top: "DataNode") -> Iterator[tuple[int, int, int]]:
    """Ranges to fill, from a node down: (start, stop, byte value), relative to the root."""
    pending = (0, 0, POISON)
    for start, stop, byte in _single_spans(top):
        if start == pending[1] and byte == pending[2]:
            pending = (pending[0], stop, byte)  # neighbours are filled at once: far fewer calls
        else:
            yield pending
            pending = (start, stop, byte)
    yield pending


def _single_spans(top: "DataNode") -> Iterator[tuple[int, int, int]]:
    for node in top.walk():
        if node.children:
            for start, stop in uncovered(node):
                yield start, stop, POISON
        elif node.dtype.is_floating_point or node.dtype.is_complex:
            byte = 0x80 if node.dtype in _FNUZ else POISON
            yield node.root_offset, node.root_offset + node.nbytes, byte
