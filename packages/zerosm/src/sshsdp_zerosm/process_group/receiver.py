"""The thread that takes one peer's messages."""

import threading
from typing import Protocol

import torch

from sshsdp_zerosm.process_group.frame import (
    FRAME_BYTES,
    INLINE_BYTES,
    Frame,
    FrameKind,
    bytes_of,
    inline_part,
    read_frame,
)
from sshsdp_zerosm.process_group.group import FOREVER, Group
from sshsdp_zerosm.process_group.sender import FRAMES, PAYLOADS


class Inbox(Protocol):
    """Where messages go."""

    def memory(self, arena: int) -> torch.Tensor:
        """This rank's memory of an arena, as uint8."""

    def take(self, peer: int, frame: Frame, payload: bytes) -> None:
        """Apply a message; the bytes of a Put are in their place already."""

    def lose(self, peer: int) -> None:
        """The connection to `peer` broke."""

    def fail(self, error: Exception) -> None:
        """A message can't be applied."""


class Receiver(threading.Thread):
    """Applies messages in the order in which they were sent.

    So a counter is raised after the bytes of all earlier puts are in their place.

    Args:
        peer: whose messages.
        group: over which they come.
        inbox: where they go.

    Attributes:
        peer: whose messages.
    """

    def __init__(self, peer: int, group: Group, inbox: Inbox) -> None:
        super().__init__(name=f"sshsdp-zerosm from {peer}", daemon=True)
        self.peer = peer
        self._group = group
        self._inbox = inbox

    def run(self) -> None:
        """Receive until the peer's last message, or the end of the connection."""
        try:
            self._receive()
        except _BrokenError:
            self._inbox.lose(self.peer)
        except Exception as error:
            self._inbox.fail(error)

    def _receive(self) -> None:
        rows = [torch.empty(FRAME_BYTES, dtype=torch.uint8) for _ in range(2)]
        pages = [bytes_of(row) for row in rows]
        kind, at = 0, 0
        pending = self._ask(rows[0], FRAMES)
        while kind != FrameKind.LAST:
            pending.wait()
            page = pages[at]
            frame = read_frame(page)
            kind = frame.kind
            if kind != FrameKind.LAST:
                # Asked for early: gloo's sender waits for that before it sends.
                at = 1 - at
                pending = self._ask(rows[at], FRAMES)
            self._inbox.take(self.peer, frame, self._payload(frame, page))

    def _payload(self, frame: Frame, page: memoryview) -> bytes:
        if frame.kind == FrameKind.PUT:
            target = self._inbox.memory(frame.a)[frame.b : frame.b + frame.size]
            if target.numel() != frame.size:
                raise IndexError(f"expected a put inside arena {frame.a}, got {frame}")
            if frame.size > INLINE_BYTES:
                self._ask(target, PAYLOADS).wait()
            else:
                bytes_of(target)[:] = inline_part(page, frame.size)
            return b""
        if frame.size > INLINE_BYTES:
            received = torch.empty(frame.size, dtype=torch.uint8)
            self._ask(received, PAYLOADS).wait()
            return received.numpy().tobytes()
        return bytes(inline_part(page, frame.size))

    def _ask(self, target: torch.Tensor, tag: int) -> "_Awaited":
        return _Awaited(self._group, target, self.peer, tag)


class _Awaited:
    """A message that was asked for."""

    def __init__(self, group: Group, target: torch.Tensor, peer: int, tag: int) -> None:
        try:
            self._work = group.recv([target], peer, tag)
        except RuntimeError as error:
            raise _BrokenError from error

    def wait(self) -> None:
        """Return when it is there."""
        try:
            self._work.wait(FOREVER)
        except RuntimeError as error:
            raise _BrokenError from error


class _BrokenError(Exception):
    """The connection ended."""
