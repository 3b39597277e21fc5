"""The control page of one rank: counters that it alone writes and everyone reads."""

from sshsdp_zerosm.words import Words

# Word indices; one 64-byte line each, so that ranks don't contend for a line.
ABORTED = 0
CLOSED = 8
SLEEPING = 16
AWAITED = 17  # on the same line: both are written by a sleeper
GENERATION = 24
BARRIER = 32
EXCHANGE = 40

_LINE = 8  # words
# Texts: where each begins, with a word for its length, and the bytes that it may have.
_AWAITED_CHANNEL = 384, 120
_REASON = 512, 504
_CHANNEL_START = 1024 // 8
CHANNELS = 2048

MAILBOX_BYTES = 256 * 1024
_SLOT_BYTES = 64 + MAILBOX_BYTES
_MAILBOX_START = 1024 + CHANNELS * 64
BOARD_BYTES = -(-(_MAILBOX_START + 2 * _SLOT_BYTES) // 4096) * 4096


def channel_word(index: int) -> int:
    """Word of a channel's counter; the word after it holds the channel's tag."""
    return _CHANNEL_START + index * _LINE


class Board:
    """One rank's control page.

    Attributes:
        words: the page as 64-bit words.
        address: of the page in this process; 0 where nobody sleeps on it (loopback).
    """

    def __init__(self, page: memoryview, words: Words, address: int = 0) -> None:
        self._page = page
        self.words = words
        self.address = address

    @classmethod
    def local(cls) -> "Board":
        """A page in this process's own memory."""
        page = memoryview(bytearray(BOARD_BYTES))
        return cls(page, page.cast("q"))

    def show_wait(self, peer: int | None, channel: str = "") -> None:
        """Let everyone see that this rank waits for `peer` on `channel`, or for nobody."""
        if peer is not None:
            self.awaited_channel = channel
        self.words[AWAITED] = 0 if peer is None else peer + 1

    def post(self, round_: int, kind: int, payload: bytes, size: int) -> None:
        """Put a message into the slot of exchange number `round_` (not yet announced).

        Two slots suffice: whoever posts round n has read everyone's round n - 1, which they
        posted after they had read all of round n - 2.
        """
        start = _MAILBOX_START + round_ % 2 * _SLOT_BYTES
        self.words[start // 8] = size
        self.words[start // 8 + 1] = kind
        self._page[start + 64 : start + 64 + len(payload)] = payload

    def read(self, round_: int) -> tuple[int, int, bytes]:
        """(kind, size, payload) of exchange number `round_`; no payload if size is too large."""
        start = _MAILBOX_START + round_ % 2 * _SLOT_BYTES
        size = self.words[start // 8]
        kind = self.words[start // 8 + 1]
        stop = start + 64 + (size if size <= MAILBOX_BYTES else 0)
        return kind, size, bytes(self._page[start + 64 : stop])

    @property
    def reason(self) -> str:
        """Why this rank aborted."""
        return self._text(*_REASON)

    @reason.setter
    def reason(self, text: str) -> None:
        self._set_text(*_REASON, text)

    @property
    def awaited_channel(self) -> str:
        """The channel of the wait that this rank showed last."""
        return self._text(*_AWAITED_CHANNEL)

    @awaited_channel.setter
    def awaited_channel(self, text: str) -> None:
        self._set_text(*_AWAITED_CHANNEL, text)

    def _text(self, start: int, room: int) -> str:
        size = min(self.words[start // 8], room)
        return bytes(self._page[start + 8 :][:size]).decode(errors="replace")

    def _set_text(self, start: int, room: int, text: str) -> None:
        encoded = text.encode()[:room]
        self._page[start + 8 :][: len(encoded)] = encoded
        self.words[start // 8] = len(encoded)

    def release(self) -> None:
        """Let go of the page; nothing may use this board afterwards."""
        self.words.release()
        self._page.release()
