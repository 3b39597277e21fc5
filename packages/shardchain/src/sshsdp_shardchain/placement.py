"""Where a member lies in its list."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """One member of a tensor list.

    Args:
        name: unique within the list.
        offset: of its first element, relative to the list (the whole flattened buffer).
        numel: number of elements; 0 is legal, a 0-d tensor has 1.
    """

    name: str
    offset: int
    numel: int

    @property
    def stop(self) -> int:
        """One past its last element, relative to the list."""
        return self.offset + self.numel
