"""How a planned layout came about."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """What the planner chose, in numbers.

    Args:
        exchanged: elements that lie outside the largest part of their unit.
        exchanged_bytes: the bytes that travel for them.
        padding: elements of the list that belong to no member.
        allowed_padding: what the budget allowed, or what the smallest list has if that is more.
        optimal: whether no layout within the budget exchanges fewer bytes, nor as few with less
            padding; False where that isn't known.
        found: the order that led here, for people.
    """

    exchanged: int
    exchanged_bytes: int
    padding: int
    allowed_padding: int
    optimal: bool
    found: str

    def describe(self) -> str:
        """One line for people."""
        proof = "optimal" if self.optimal else "no proof that it is optimal"
        return (
            f"planned {self.found}: {self.exchanged} elements exchanged "
            f"({self.exchanged_bytes} bytes), {self.padding} padding of {self.allowed_padding} "
            f"allowed, {proof}"
        )
