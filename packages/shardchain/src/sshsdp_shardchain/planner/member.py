"""What is placed: tensors, and packs of tensors that must lie together."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """A tensor to place, and what a cut through it costs.

    It consists of units of ``unit`` elements from its first element on, the last one possibly
    smaller: a matrix per expert, a head, a band of 32 rows. A unit that is cut is worked on by the
    rank with the largest part, so the rest of it must travel there.

    Args:
        name: unique in the list.
        numel: elements, 0 or more.
        unit: elements that are worked on together; 1 may be cut anywhere at no cost, ``numel`` (or
            more) is the whole tensor.
        bytes_per_element: that travel, there and back, for each element outside the largest part.

    Raises:
        ValueError: a size is negative, or the unit or the bytes are below 1.
    """

    name: str
    numel: int
    unit: int = 1
    bytes_per_element: int = 1

    def __post_init__(self) -> None:
        if self.numel < 0:
            raise ValueError(
                f"expected 0 or more elements, got {self.numel} for member {self.name!r}; "
                "pass its numel"
            )
        if self.unit < 1 or self.bytes_per_element < 1:
            raise ValueError(
                f"expected a unit and bytes per element of 1 or more in member {self.name!r}, got "
                f"unit={self.unit}, bytes_per_element={self.bytes_per_element}; "
                "use unit=1 where it may be cut anywhere"
            )


@dataclass(frozen=True, slots=True)
class Pack:
    """Tensors that are one operand of a kernel (Q, K and V): placed as one, in this order.

    The first is aligned; the others follow without a gap.

    Args:
        members: in the order of the kernel's operand, at least one.

    Raises:
        ValueError: there are no members.
    """

    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        if not self.members:
            raise ValueError("expected at least one member in a pack, got none; leave it out")
