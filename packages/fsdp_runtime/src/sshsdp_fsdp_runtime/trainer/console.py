"""Console: the two ways in which the trainer speaks to the user."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import IO


def say(text: str) -> None:
    """A line, or several, on standard output, at once."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """The same on standard error."""
    _write(sys.stderr, text)


@contextlib.contextmanager
def outliving(stream: IO[str]) -> Iterator[None]:
    """Writes to `stream` in the block fail if they do, unless its terminal was closed.

    Then they, and all later ones, go nowhere: a run that is about to save must not end of it.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _write(stream: IO[str], text: str) -> None:
    with outliving(stream):
        stream.write(f"{text}\n")
        stream.flush()
