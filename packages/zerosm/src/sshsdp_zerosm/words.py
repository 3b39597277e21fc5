"""64-bit words that another process reads and writes at the same time."""

import ctypes
import ctypes.util
import platform
from collections.abc import Callable
from typing import Protocol

_SEQUENTIAL = 5  # __ATOMIC_SEQ_CST


class Words(Protocol):
    """Signed 64-bit words by index; a load acquires, a store releases."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...
    def release(self) -> None:
        """Let go of the memory; later accesses raise."""


class AtomicWords:
    """Words behind libatomic, for processors that reorder plain loads and stores."""

    def __init__(self, address: int, count: int) -> None:
        self._address = address
        self._count = count
        self._load, self._store = _libatomic()

    def __getitem__(self, index: int) -> int:
        return int(self._load(self._at(index), _SEQUENTIAL))

    def __setitem__(self, index: int, value: int) -> None:
        self._store(self._at(index), value, _SEQUENTIAL)

    def release(self) -> None:
        """Let go of the memory; later accesses raise."""
        self._count = 0

    def _at(self, index: int) -> int:
        if not 0 <= index < self._count:
            raise IndexError(f"expected a word below {self._count}, got {index}")
        return self._address + 8 * index


def ordered_words(plain: memoryview, address: int) -> Words:
    """Words over `plain` (bytes at `address`) in which a signal never overtakes its payload.

    On x86-64 plain aligned 8-byte accesses already are acquire and release, and a memoryview makes
    exactly one such access per item (0.05 us). Elsewhere they go through libatomic.

    Raises:
        RuntimeError: the processor needs libatomic, and there is none.
    """
    words = plain.cast("q")
    if platform.machine().lower() in ("x86_64", "amd64"):
        return words
    return AtomicWords(address, len(words))


def check_ordering() -> None:
    """RuntimeError if this machine needs libatomic and lacks it."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        _libatomic()


def _libatomic() -> tuple[Callable[[int, int], int], Callable[[int, int, int], None]]:
    path = ctypes.util.find_library("atomic")
    if path is None:
        raise RuntimeError(
            f"expected libatomic on {platform.machine()}, where shared memory needs ordered "
            f"loads and stores, got none: install it (package libatomic1 or libatomic)"
        )
    library = ctypes.CDLL(path)
    load, store = library.__atomic_load_8, library.__atomic_store_8
    load.argtypes, load.restype = (ctypes.c_void_p, ctypes.c_int), ctypes.c_int64
    store.argtypes, store.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int), None
    return load, store
