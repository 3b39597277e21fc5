"""The messages between ranks that don't share memory."""

import struct
from enum import IntEnum
from typing import Any, NamedTuple

import torch

FRAME_BYTES = 512
"""Every message starts with so many bytes: a header, then the payload if it fits."""
_HEADER = struct.Struct("<qqQqqqq")
INLINE_BYTES = FRAME_BYTES - _HEADER.size
"""Longer payloads follow in a message of their own."""


class FrameKind(IntEnum):
    """What a message is for, and what its numbers mean."""

    WORD = 1
    """The sender raised a counter. a: word of its board, b: value, c: value of the next word."""
    PUT = 2
    """Bytes for the receiver's memory. a: index of the arena, b: offset."""
    MAIL = 3
    """Part of an exchange. a: round, b: mailbox kind, c: size; payload: the message."""
    ABORT = 4
    """The sender aborted; payload: why."""
    PLACE = 5
    """How far the sender is. a: the rank that it waits for, plus 1; payload: on which
    channel."""
    REPORT = 6
    """What the sender has run; payload: see Order."""
    LAST = 7
    """The sender sends nothing more; payload: who has died or aborted, and its report."""


class Frame(NamedTuple):
    """A header.

    Attributes:
        kind: what it is.
        runs: how many programs and collective calls the sender has started.
        chain: a hash over all of them, in order.
        size: bytes of the payload.
        a: see FrameKind.
        b: see FrameKind.
        c: see FrameKind.
    """

    kind: int
    runs: int
    chain: int
    size: int
    a: int
    b: int
    c: int


def write_frame(
    page: memoryview, kind: int, place: tuple[int, int], size: int, a: int, b: int, c: int
) -> None:
    """Write a header to the start of `page`; `place` is (runs, chain)."""
    _HEADER.pack_into(page, 0, kind, *place, size, a, b, c)


def read_frame(page: memoryview) -> Frame:
    """The header at the start of `page`."""
    return Frame._make(_HEADER.unpack_from(page))


def inline_part(page: memoryview, size: int) -> memoryview:
    """Where a payload of at most INLINE_BYTES lies in a frame."""
    return page[_HEADER.size : _HEADER.size + size]


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous 1-D uint8 tensor."""
    array: Any = tensor.numpy()
    return memoryview(array)
