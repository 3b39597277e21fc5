"""Console: the two ways in which the trainer speaks to the user."""

import sys
from typing import TextIO


def say(text: str) -> None:
    """A line, or several, on standard output, at once."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """The same on standard error."""
    _write(sys.stderr, text)


def _write(stream: TextIO, text: str) -> None:
    stream.write(f"{text}\n")
    stream.flush()
