"""The members of a tensor list and how they are cut."""

import difflib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field

from .chain import ShardChain
from .degrees import Degrees
from .description import describe_layout
from .fragment import Fragment
from .level import Level
from .placement import Placement
from .ranges import Range


@dataclass(frozen=True, slots=True)
class Layout:
    """Members in one flattened buffer, and the shard chain of that buffer.

    Plain integers: the same value on every rank, made without tensors, devices or ranks.

    Args:
        placements: the members, by ascending offset, without overlap.
        chain: how the buffer is cut; holds every member.

    Raises:
        ValueError: members overlap, leave the buffer or share a name.
    """

    placements: tuple[Placement, ...]
    chain: ShardChain
    _by_name: dict[str, Placement] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", _index(self.placements))
        end = 0
        for placement in self.placements:
            if placement.offset < end or placement.numel < 0:
                raise ValueError(
                    f"expected member {placement.name!r} at offset {end} or later with 0 or more "
                    f"elements, got offset={placement.offset}, numel={placement.numel}; "
                    "order members by offset and leave no overlap"
                )
            end = placement.stop
        if end > self.chain.numel:
            raise ValueError(
                f"expected members within the buffer of {self.chain.numel} elements, "
                f"got {self.placements[-1].name!r} ending at {end}; enlarge the buffer"
            )

    @classmethod
    def pack(
        cls,
        members: Sequence[tuple[str, int]],
        degrees: Degrees,
        world: int,
        *,
        align: int = 1,
    ) -> "Layout":
        """Place members one after another and pad the end so that every chunk is even.

        Args:
            members: name and number of elements of each, in the order wanted.
            degrees: how the buffer is cut.
            world: number of ranks.
            align: in elements; every member and every ZeRO-1 chunk starts at a multiple of it.

        Returns:
            The layout; its buffer is a multiple of ``align * degrees.zero1`` elements.

        Raises:
            ValueError: ``align`` is below 1, a name repeats, a size is negative or the degrees do
                not fit the world.
        """
        if align < 1:
            raise ValueError(
                f"expected an alignment of 1 or more elements, got align={align}; "
                "use 1 where members may start anywhere"
            )
        placements = []
        end = 0
        for name, numel in members:
            if numel < 0:
                raise ValueError(
                    f"expected 0 or more elements, got {numel} for member {name!r}; pass its numel"
                )
            offset = _round_up(end, align)
            placements.append(Placement(name, offset, numel))
            end = offset + numel
        numel = _round_up(end, align * degrees.zero1)
        return cls(tuple(placements), ShardChain(numel, degrees, world))

    @property
    def numel(self) -> int:
        """Elements of the whole buffer, padding included."""
        return self.chain.numel

    @property
    def padding(self) -> int:
        """Elements that belong to no member."""
        return self.numel - sum(placement.numel for placement in self.placements)

    def placement(self, name: str) -> Placement:
        """Where a member lies.

        Raises:
            KeyError: no member has this name.
        """
        try:
            return self._by_name[name]
        except KeyError:
            close = difflib.get_close_matches(name, self._by_name, n=3)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "check the name"
            raise KeyError(
                f"expected one of the {len(self.placements)} members, got {name!r}; {hint}"
            ) from None

    def fragment(self, name: str, level: Level, rank: int) -> Fragment:
        """The piece of one member that a rank holds at a level; may be empty."""
        return next(_cut((self.placement(name),), level, rank, self.chain.range(level, rank)))

    def fragments(self, level: Level, rank: int) -> tuple[Fragment, ...]:
        """The pieces of all members that a rank holds at a level, in order, empty ones included."""
        return tuple(_cut(self.placements, level, rank, self.chain.range(level, rank)))

    def describe(self) -> str:
        """A text for people: sizes, owners of every level, members and who updates them."""
        return describe_layout(self.placements, self.chain)

    def signature(self) -> str:
        """SHA-256 (hex) of everything that defines the layout; equal on every rank."""
        content = {
            "layout": 1,  # raised when the same content starts to mean another layout
            "numel": self.numel,
            "degrees": astuple(self.chain.degrees),
            "world": self.chain.world,
            "members": [(p.name, p.offset, p.numel) for p in self.placements],
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _index(placements: Sequence[Placement]) -> dict[str, Placement]:
    by_name = {placement.name: placement for placement in placements}
    if len(by_name) < len(placements):
        names = [placement.name for placement in placements]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"expected members of different names, got {repeated!r} "
            f"{names.count(repeated)} times; rename all but one"
        )
    return by_name


def _cut(
    placements: Sequence[Placement], level: Level, rank: int, local: Range
) -> Iterator[Fragment]:
    """Intersect members with a local buffer."""
    # Branches, not min and max: lists have 10,000s of members, and calls would double the time.
    first, last, room = local.start, local.stop, local.numel
    for placement in placements:
        offset, numel = placement.offset, placement.numel
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
        yield Fragment(placement.name, level, rank, start, stop, offset + start, local_offset)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
