"""An address: bytes of one rank's memory in a named arena."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Region:
    """The half-open byte range ``[offset, offset + nbytes)`` of one rank's part of an arena.

    Attributes:
        arena: name of the arena.
        rank: whose memory; with a shared arena every rank names the same bytes.
        offset: bytes from the start of that memory.
        nbytes: length in bytes; 0 is legal.
    """

    arena: str
    rank: int
    offset: int
    nbytes: int

    def __post_init__(self) -> None:
        if self.rank < 0 or self.offset < 0 or self.nbytes < 0:
            raise ValueError(f"expected rank, offset and nbytes >= 0, got {self!r}")

    def __str__(self) -> str:
        return f"{self.arena}[{self.rank}][{self.offset}:{self.stop}]"

    @property
    def stop(self) -> int:
        """The byte after the last one."""
        return self.offset + self.nbytes

    def part(self, start: int, nbytes: int) -> "Region":
        """The `nbytes` bytes at `start`, counted from the start of this region."""
        if start < 0 or nbytes < 0 or start + nbytes > self.nbytes:
            raise ValueError(
                f"expected a part inside {self}, got bytes [{start}:{start + nbytes}] of it"
            )
        return Region(self.arena, self.rank, self.offset + start, nbytes)

    def overlaps(self, other: "Region") -> bool:
        """Whether both name at least one common byte of the same rank's memory."""
        return (self.arena, self.rank) == (other.arena, other.rank) and max(
            self.offset, other.offset
        ) < min(self.stop, other.stop)

    def numel(self, dtype: torch.dtype) -> int:
        """Number of elements of `dtype`; ValueError unless offset and length are whole ones."""
        size = dtype.itemsize
        if self.offset % size or self.nbytes % size:
            raise ValueError(
                f"expected offset and nbytes to be multiples of {size} ({dtype}), got {self}"
            )
        return self.nbytes // size
