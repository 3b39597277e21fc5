"""Half-open ranges of elements."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """The elements ``start <= i < stop``; what they count is said by whoever returns one.

    Args:
        start: first element, at least 0.
        stop: one past the last element, at least ``start``.

    Raises:
        ValueError: the bounds are negative or out of order.
    """

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(
                f"expected 0 <= start <= stop, got start={self.start}, stop={self.stop}; "
                "an empty range has stop equal to start"
            )

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    @property
    def empty(self) -> bool:
        """Whether there is no element."""
        return self.start == self.stop

    def intersect(self, other: "Range") -> "Range":
        """The elements in both ranges; an empty result lies at a bound of ``self``."""
        start = min(max(self.start, other.start), self.stop)
        return Range(start, max(start, min(self.stop, other.stop)))
