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
_TEXT_START, TEXT_BYTES = 512, 504  # bytes; the word before the text holds its length
_TEXT_WORD = _TEXT_START // 8
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

    def show_wait(self, peer: int | None) -> None:
        """Let everyone see that this rank waits for `peer`, or for nobody."""
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
        size = self.words[_TEXT_WORD]
        return bytes(self._page[_TEXT_START + 8 :][:size]).decode(errors="replace")

    @reason.setter
    def reason(self, text: str) -> None:
        encoded = text.encode()[:TEXT_BYTES]
        self._page[_TEXT_START + 8 :][: len(encoded)] = encoded
        self.words[_TEXT_WORD] = len(encoded)

    def release(self) -> None:
        """Let go of the page; nothing may use this board afterwards."""
        self.words.release()
        self._page.release()
