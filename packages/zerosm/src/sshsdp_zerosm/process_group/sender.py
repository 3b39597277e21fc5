"""Messages to one peer."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import torch

from sshsdp_zerosm.errors import TransportError, WaitTimeoutError
from sshsdp_zerosm.process_group.frame import (
    FRAME_BYTES,
    INLINE_BYTES,
    FrameKind,
    bytes_of,
    inline_part,
    write_frame,
)
from sshsdp_zerosm.process_group.group import Group, Work
from sshsdp_zerosm.process_group.order import Order

_DEPTH = 64  # messages under way; then the oldest is waited for
FRAMES, PAYLOADS, NOBODY = 0, 1, 2
"""Tags. Payloads have one of their own, so that a receiver can ask early for the next frame."""


class _Sent(NamedTuple):
    works: tuple[Work, ...]
    payload: torch.Tensor | None
    start: int
    stop: int


class Sender:
    """Sends in order and without waiting for the receiver, up to a number of messages.

    Args:
        rank: this rank.
        peer: to whom.
        group: over which.
        order: says where this rank is.
        timeout: seconds until a peer that takes nothing is given up.
        on_error: told of a peer that is gone (None) or that took nothing in time.
    """

    def __init__(
        self,
        rank: int,
        peer: int,
        group: Group,
        order: Order,
        timeout: float,
        on_error: Callable[[int, TransportError | None], None],
    ) -> None:
        self._rank = rank
        self._peer = peer
        self._group = group
        self._order = order
        self._timeout = timeout
        self._on_error = on_error
        self._rows, self._pages = _frames(_DEPTH)
        self._sent: list[_Sent | None] = [None] * _DEPTH
        self._count = 0
        # Receiver threads send too. The lock keeps a frame and its payload together; nobody waits
        # for a message while holding it, or two ranks could wait for each other.
        self._lock = threading.Lock()
        self._apart: list[tuple[torch.Tensor, _Sent]] = []
        self._deadline: float | None = None
        self.ended = False

    @property
    def overdue(self) -> bool:
        """A message is waited for, and its time is over: connections break by our own doing."""
        deadline = self._deadline
        return deadline is not None and time.monotonic() >= deadline

    def send(
        self,
        kind: FrameKind,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        payload: torch.Tensor | None = None,
    ) -> None:
        """Send a message; by the thread that runs programs.

        Args:
            kind: see FrameKind.
            a: see FrameKind.
            b: see FrameKind.
            c: see FrameKind.
            payload: uint8; unless it is short it must stay as it is until `fence`.
        """
        slot = self._count % _DEPTH
        if self._sent[slot] is not None:
            self._finish(slot)
        if not self.ended:
            self._count += 1
            row, page = self._rows[slot], self._pages[slot]
            self._sent[slot] = self._post(row, page, kind, a, b, c, payload)

    def send_apart(self, kind: FrameKind, payload: bytes = b"") -> None:
        """Send a message that is not part of a program; by any thread."""
        (row,), (page,) = _frames(1)
        sent = self._post(row, page, kind, 0, 0, 0, as_payload(payload))
        if sent is not None:
            self._apart.append((row, sent))

    def fence(self, start: int, stop: int) -> None:
        """Wait until no message under way reads the memory from address `start` to `stop`."""
        for slot, sent in enumerate(self._sent):
            if sent is not None and sent.start < stop and start < sent.stop:
                self._finish(slot)

    def release(self) -> None:
        """Send nothing more, and let go of the group: an error's traceback may keep this object."""
        with self._lock:
            self.ended = True
            del self._group
            self._sent.clear()
            self._apart.clear()

    def _post(
        self,
        row: torch.Tensor,
        page: memoryview,
        kind: FrameKind,
        a: int,
        b: int,
        c: int,
        payload: torch.Tensor | None,
    ) -> _Sent | None:
        size = 0 if payload is None else payload.numel()
        apart = size > INLINE_BYTES
        if payload is not None and not apart:
            inline_part(page, size)[:] = bytes_of(payload)
            payload = None
        write_frame(page, kind, self._order.place, size, a, b, c)
        try:
            with self._lock:
                if self.ended:
                    return None
                self.ended = kind is FrameKind.LAST
                works = [self._group.send([row], self._peer, FRAMES)]
                if payload is not None:
                    works.append(self._group.send([payload], self._peer, PAYLOADS))
        except RuntimeError:
            self._fail(None)
            return None
        start = 0 if payload is None else payload.data_ptr()
        return _Sent(tuple(works), payload, start, start + (size if apart else 0))

    def _finish(self, slot: int) -> None:
        """Wait until the message in a slot was sent."""
        if self.ended:
            return  # a peer that has left needs nothing any more
        self._deadline = time.monotonic() + self._timeout
        sent, overdue = self._wait(slot), self.overdue
        self._deadline = None
        if overdue and not sent:
            late = WaitTimeoutError(
                self._rank, self._peer, "send", self._count, self._count - _DEPTH, self._timeout
            )
            self._fail(late)
            raise late
        if not sent:
            self._fail(None)

    def _wait(self, slot: int) -> bool:
        # Apart, so that an error's traceback doesn't keep the work, which keeps the connections.
        sent, self._sent[slot] = self._sent[slot], None
        try:
            for work in sent.works if sent is not None else ():
                work.wait(timedelta(seconds=self._timeout))
        except RuntimeError:
            return False
        return True

    def _fail(self, error: TransportError | None) -> None:
        self.ended = True
        self._on_error(self._peer, error)


def as_payload(payload: bytes) -> torch.Tensor:
    """A copy as a tensor."""
    with torch.inference_mode(False):
        return torch.from_numpy(np.frombuffer(payload, dtype=np.uint8).copy())


def _frames(count: int) -> tuple[list[torch.Tensor], list[memoryview]]:
    with torch.inference_mode(False):
        rows = list(torch.zeros(count, FRAME_BYTES, dtype=torch.uint8))
    return rows, [bytes_of(row) for row in rows]
