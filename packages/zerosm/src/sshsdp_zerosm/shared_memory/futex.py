"""Sleep on, and wake sleepers of, a 32-bit word in shared memory (futex(2))."""

import ctypes
import functools
import platform

_NUMBERS = {"x86_64": 202, "amd64": 202, "aarch64": 98, "arm64": 98, "riscv64": 98}
_WAIT, _WAKE = 0, 1
_EVERYONE = 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Futex:
    """The futex calls, bound once."""

    def __init__(self) -> None:
        machine = platform.machine().lower()
        if machine not in _NUMBERS:
            raise RuntimeError(
                f"expected a processor of {', '.join(_NUMBERS)} for shared memory, got {machine}"
            )
        # A library of its own: argtypes set here bind nobody else.
        syscall = ctypes.CDLL(None).syscall
        syscall.restype = ctypes.c_long
        syscall.argtypes = (
            ctypes.c_long,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_uint32,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_uint32,
        )
        self._call = functools.partial(syscall, _NUMBERS[machine])

    def wait(self, address: int, value: int, seconds: float) -> None:
        """Sleep while the word at `address` is `value`; returns early or after `seconds`."""
        whole = int(seconds)
        limit = _Timespec(whole, int((seconds - whole) * 1e9))
        # ctypes passes the low 32 bits of `value`, as the kernel compares them.
        self._call(address, _WAIT, value, ctypes.byref(limit), None, 0)

    def wake(self, address: int) -> None:
        """Wake everyone who sleeps on the word at `address`."""
        self._call(address, _WAKE, _EVERYONE, None, None, 0)
