"""Stop: how a rank learns that the user wants the run to end."""

import os
import signal
from multiprocessing.connection import Connection
from types import FrameType
from typing import Protocol

# A process that is started with SIGHUP ignored (nohup) goes on when its terminal is closed.
_HANG_UP = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
SIGNALS = (signal.SIGINT, signal.SIGTERM, *_HANG_UP)


def exit_status(signum: int) -> int:
    """Exit status of a process that a signal ended, by the convention of shells."""
    return 128 + signum


class Stop(Protocol):
    """Asked once per step, by every rank; the ranks then agree among themselves."""

    def requested(self) -> int:
        """Number of the signal that asked for the end; 0: none did."""
        ...


class PipeStop:
    """The launcher sends the signal's number down the rank's pipe.

    The rank itself ignores the signals: a terminal sends Ctrl-C to every process of the group, and
    one that died of it could not finish the round.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._signum = pipe, 0
        for signum in SIGNALS:
            signal.signal(signum, signal.SIG_IGN)

    def requested(self) -> int:
        """The number sent, if any."""
        if not self._signum and self._pipe.poll():
            self._signum = int(self._pipe.recv())
        return self._signum


class SignalStop:
    """The rank's own signal handlers, for ranks that somebody else started (torchrun)."""

    def __init__(self) -> None:
        self._signum = 0
        for signum in SIGNALS:
            signal.signal(signum, self._handle)

    def requested(self) -> int:
        """The number of the first signal, if any."""
        return self._signum

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        del frame
        if self._signum:
            os._exit(exit_status(signum))
        self._signum = signum
