"""What a local buffer holds of each member."""

from collections.abc import Iterable, Iterator

from .fragment import Fragment
from .level import Level
from .ranges import Range


def fragments_in(
    rows: Iterable[tuple[str, int, int]], level: Level, rank: int, local: Range
) -> Iterator[Fragment]:
    """Intersect members with the local buffer of a rank at a level.

    Args:
        rows: name, offset relative to the list and size of each member.
        level: of the local buffer.
        rank: its holder.
        local: its elements, relative to the list.

    Yields:
        One fragment per member, in order; an empty one has offsets within bounds.
    """
    # Branches, not min and max: lists have 10,000s of members, and calls would double the time.
    first, last, room = local.start, local.stop, local.numel
    for name, offset, numel in rows:
        start = first - offset
        if start < 0:
            start = 0
        elif start > numel:
            start = numel
        stop = last - offset
        if stop > numel:
            stop = numel
        if stop < start:
            stop = start
        # Only an empty fragment needs this clamp; it keeps slices of the local buffer legal.
        local_offset = offset + start - first
        if local_offset < 0:
            local_offset = 0
        elif local_offset > room:
            local_offset = room
        yield Fragment(name, level, rank, start, stop, offset + start, local_offset)
