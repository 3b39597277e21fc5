"""One chunk of a buffer and who holds it."""

from dataclasses import dataclass

from .ranges import Range


@dataclass(frozen=True, slots=True)
class Cut:
    """What one rank holds of the buffer at a level.

    Args:
        index: in buffer order, from 0.
        extent: its elements, relative to the list.
        owner: the rank that holds it, of one replica set.
    """

    index: int
    extent: Range
    owner: int
