"""All members of a list, compactly."""

import difflib
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from .placement import Placement
from .ranges import Range


class Placements(Sequence[Placement]):
    """The members of a list by ascending offset, 24 bytes each beside the text of their names.

    A tuple of :class:`Placement` to those who read it; a million members are two arrays and the
    names, and a ``Placement`` is made where one is asked for.

    Args:
        names: of each member, all different.
        offsets: of the first element of each, relative to the list.
        numels: elements of each, 0 or more.

    Raises:
        ValueError: members overlap, come out of order, share a name or have a negative size.
    """

    __slots__ = ("_index", "_names", "_numels", "_offsets")

    def __init__(self, names: Iterable[str], offsets: Iterable[int], numels: Iterable[int]) -> None:
        self._names = tuple(names)
        self._offsets = array("q", offsets)
        self._numels = array("q", numels)
        self._index: dict[str, int] | None = None
        self._check_names()
        self._check_order()

    @classmethod
    def of(cls, placements: Iterable[Placement]) -> "Placements":
        """The same members; what is compact already is returned as it is."""
        if isinstance(placements, cls):
            return placements
        given = tuple(placements)
        return cls(
            (placement.name for placement in given),
            (placement.offset for placement in given),
            (placement.numel for placement in given),
        )

    @property
    def stop(self) -> int:
        """One past the last element of the last member, relative to the list; 0 for no members."""
        return self._offsets[-1] + self._numels[-1] if self._names else 0

    @property
    def numel(self) -> int:
        """Elements of all members."""
        return sum(self._numels)

    def rows(self) -> Iterator[tuple[str, int, int]]:
        """Name, offset and size of each member, in order: what loops over all of them read."""
        return zip(self._names, self._offsets, self._numels, strict=True)

    def overlapping(self, extent: Range) -> Iterator[tuple[str, int, int]]:
        """Rows of the members that have elements in a range, in order; found by bisection."""
        # Members don't overlap, so of those that start before the range only the last can reach
        # into it; where that one is empty, none does.
        first = max(bisect_right(self._offsets, extent.start) - 1, 0)
        for index in range(first, bisect_left(self._offsets, extent.stop)):
            offset, numel = self._offsets[index], self._numels[index]
            if numel and offset + numel > extent.start:
                yield self._names[index], offset, numel

    def named(self, name: str) -> Placement:
        """The member of this name.

        Raises:
            KeyError: there is none.
        """
        if self._index is None:  # only some layouts are asked by name
            self._index = {name: index for index, name in enumerate(self._names)}
        try:
            return self[self._index[name]]
        except KeyError:
            close = difflib.get_close_matches(name, self._names, n=3)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "check the name"
            raise KeyError(
                f"expected one of the {len(self)} members, got {name!r}; {hint}"
            ) from None

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> Placement: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Placement, ...]: ...
    def __getitem__(self, index: int | slice) -> Placement | tuple[Placement, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        return Placement(self._names[index], self._offsets[index], self._numels[index])

    def __iter__(self) -> Iterator[Placement]:
        return (Placement(name, offset, numel) for name, offset, numel in self.rows())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Placements):
            return self._columns() == other._columns()
        if isinstance(other, tuple):
            return tuple(self) == other
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))  # that of an equal tuple

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[type, tuple[tuple[str, ...], "array[int]", "array[int]"]]:
        return Placements, self._columns()

    def _columns(self) -> tuple[tuple[str, ...], "array[int]", "array[int]"]:
        return self._names, self._offsets, self._numels

    def _check_names(self) -> None:
        if len(set(self._names)) == len(self._names):
            return
        repeated = next(name for name, count in Counter(self._names).items() if count > 1)
        raise ValueError(
            f"expected members of different names, got {repeated!r} "
            f"{self._names.count(repeated)} times; rename all but one"
        )

    def _check_order(self) -> None:
        end = 0
        for name, offset, numel in self.rows():
            if offset < end or numel < 0:
                raise ValueError(
                    f"expected member {name!r} at offset {end} or later with 0 or more "
                    f"elements, got offset={offset}, numel={numel}; "
                    "order members by offset and leave no overlap"
                )
            end = offset + numel
