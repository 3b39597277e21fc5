"""The piece of a member that one rank holds."""

from dataclasses import dataclass

from .level import Level


@dataclass(frozen=True, slots=True)
class Fragment:
    """The intersection of a member with one rank's local buffer at a level; may be empty.

    Every element between ``start`` and ``stop`` has three addresses that differ by constants: in
    the tensor, in the list and in the local buffer. Those of an empty fragment are within bounds,
    so that a slice with them is legal and empty.

    Args:
        name: the member.
        level: the level of the local buffer.
        rank: the holder.
        start: first element, flat, relative to the tensor.
        stop: one past the last element, flat, relative to the tensor.
        list_offset: of element ``start``, relative to the list (the whole flattened buffer).
        local_offset: of element ``start``, relative to the rank's local buffer at this level.
    """

    name: str
    level: Level
    rank: int
    start: int
    stop: int
    list_offset: int
    local_offset: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    @property
    def empty(self) -> bool:
        """Whether the rank holds nothing of the member."""
        return self.start == self.stop
