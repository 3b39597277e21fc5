"""Layouts as text that stays short, whatever the number of ranks and members."""

from collections.abc import Iterator

from .chain import ShardChain
from .choice import Choice
from .level import Level
from .placement import Placement
from .placements import Placements

_SHOWN_RANKS = 8
_SHOWN_MEMBERS = 64


def describe_layout(placements: Placements, chain: ShardChain, choice: Choice | None) -> str:
    """Sizes, owners of every level, then one line per member with the ranks that update it."""
    lines = [*_header(placements, chain)]
    if choice is not None:
        lines.append(f"  {choice.describe()}")
    return "\n".join([*lines, *_members(placements, chain)])


def _header(placements: Placements, chain: ShardChain) -> Iterator[str]:
    degrees = chain.degrees
    padding = chain.numel - placements.numel
    yield (
        f"layout of {len(placements)} members in {chain.numel} elements ({padding} padding), "
        f"zero3={degrees.zero3} zero2={degrees.zero2} zero1={degrees.zero1}, world {chain.world}"
    )
    for level in (Level.ZERO3, Level.ZERO2, Level.ZERO1):
        chunks = degrees.chunks(level)
        yield (
            f"  {level}: {chunks} chunks of {chain.numel // chunks}, "
            f"{chain.world // chunks} replicas, owners {_owners(chain, level, 0, chunks)}"
        )


def _members(placements: Placements, chain: ShardChain) -> Iterator[str]:
    """A line for each of the first and last members, and how many are between them."""
    shown = _SHOWN_MEMBERS // 2
    left_out = max(len(placements) - 2 * shown, 0)
    first = placements[:shown] if left_out else placements[:]
    last = placements[-shown:] if left_out else ()
    width = max((len(placement.name) for placement in (*first, *last)), default=0)
    for placement in first:
        yield _member(placement, chain, width)
    if left_out:
        yield f"  ... {left_out} members ..."
    for placement in last:
        yield _member(placement, chain, width)


def _member(placement: Placement, chain: ShardChain, width: int) -> str:
    chunk = chain.numel // chain.degrees.zero1
    holders = "no rank"
    if placement.numel:
        start, stop = placement.offset // chunk, -(-placement.stop // chunk)
        holders = _owners(chain, Level.ZERO1, start, stop)
    return f"  {placement.name:<{width}}  {placement.offset}..{placement.stop}  zero1 on {holders}"


def _owners(chain: ShardChain, level: Level, start: int, stop: int) -> str:
    """The holders of the chunks from ``start`` to ``stop``, elided in the middle."""

    def owners(first: int, last: int) -> str:
        return " ".join(str(cut.owner) for cut in chain.cuts(level, start=first, stop=last))

    if stop - start <= _SHOWN_RANKS:
        return owners(start, stop)
    shown = _SHOWN_RANKS // 2
    return f"{owners(start, start + shown)} ... {owners(stop - shown, stop)} ({stop - start} ranks)"
