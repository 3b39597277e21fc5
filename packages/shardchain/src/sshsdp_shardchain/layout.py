"""The members of a tensor list and how they are cut."""

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from itertools import islice

from .chain import ShardChain
from .choice import Choice
from .degrees import Degrees
from .description import describe_layout
from .fragment import Fragment
from .intersection import fragments_in
from .level import Level
from .placement import Placement
from .placements import Placements

_SIGNED_AT_ONCE = 4096  # members; bounds the text that is in memory


@dataclass(frozen=True, slots=True)
class Layout:
    """Members in one flattened buffer, and the shard chain of that buffer.

    Plain integers: the same value on every rank, made without tensors, devices or ranks.

    Args:
        placements: the members, by ascending offset, without overlap.
        chain: how the buffer is cut; holds every member.
        choice: how a planned layout came about; no part of what it is.

    Raises:
        ValueError: members overlap, leave the buffer or share a name.
    """

    placements: Sequence[Placement]
    chain: ShardChain
    choice: Choice | None = field(default=None, compare=False)
    _table: Placements = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        table = Placements.of(self.placements)
        object.__setattr__(self, "placements", table)
        object.__setattr__(self, "_table", table)
        if table.stop > self.chain.numel:
            raise ValueError(
                f"expected members within the buffer of {self.chain.numel} elements, "
                f"got {table[-1].name!r} ending at {table.stop}; enlarge the buffer"
            )

    @classmethod
    def pack(
        cls,
        members: Iterable[tuple[str, int]],
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
        names, offsets, numels = [], array("q"), array("q")
        end = 0
        for name, numel in members:
            if numel < 0:
                raise ValueError(
                    f"expected 0 or more elements, got {numel} for member {name!r}; pass its numel"
                )
            offset = -(-end // align) * align
            names.append(name)
            offsets.append(offset)
            numels.append(numel)
            end = offset + numel
        unit = align * degrees.zero1
        chain = ShardChain(-(-end // unit) * unit, degrees, world)
        return cls(Placements(names, offsets, numels), chain)

    @property
    def numel(self) -> int:
        """Elements of the whole buffer, padding included."""
        return self.chain.numel

    @property
    def padding(self) -> int:
        """Elements that belong to no member."""
        return self.numel - self._table.numel

    def placement(self, name: str) -> Placement:
        """Where a member lies.

        Raises:
            KeyError: no member has this name.
        """
        return self._table.named(name)

    def fragment(self, name: str, level: Level, rank: int) -> Fragment:
        """The piece of one member that a rank holds at a level; may be empty."""
        member = self._table.named(name)
        rows = ((member.name, member.offset, member.numel),)
        return next(fragments_in(rows, level, rank, self.chain.range(level, rank)))

    def fragments(self, level: Level, rank: int) -> tuple[Fragment, ...]:
        """The pieces of all members that a rank holds at a level, in order, empty ones included."""
        return tuple(fragments_in(self._table.rows(), level, rank, self.chain.range(level, rank)))

    def overlapping(self, level: Level, rank: int) -> Iterator[Fragment]:
        """The pieces that a rank holds at a level, in order, one at a time, none of them empty.

        Members that the rank holds nothing of are never looked at: at ZeRO-1 over 131,072 ranks the
        cost is that of one rank's members, not of all.
        """
        local = self.chain.range(level, rank)
        return fragments_in(self._table.overlapping(local), level, rank, local)

    def describe(self) -> str:
        """A text for people: sizes, owners of every level, members and who updates them."""
        return describe_layout(self._table, self.chain, self.choice)

    def signature(self) -> str:
        """SHA-256 (hex) of everything that defines the layout; equal on every rank."""
        content = {
            "layout": 1,  # raised when the same content starts to mean another layout
            "numel": self.numel,
            "degrees": astuple(self.chain.degrees),
            "world": self.chain.world,
            "members": len(self._table),
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
        rows = self._table.rows()
        while batch := list(islice(rows, _SIGNED_AT_ONCE)):
            digest.update(json.dumps(batch).encode())
        return digest.hexdigest()
