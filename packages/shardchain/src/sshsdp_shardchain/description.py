"""Layouts as text."""

from collections.abc import Iterator, Sequence

from .chain import ShardChain
from .level import Level
from .placement import Placement

_SHOWN_RANKS = 8


def describe_layout(placements: Sequence[Placement], chain: ShardChain) -> str:
    """Sizes, owners of every level, then one line per member with the ranks that update it."""
    return "\n".join([*_header(placements, chain), *_members(placements, chain)])


def _header(placements: Sequence[Placement], chain: ShardChain) -> Iterator[str]:
    degrees = chain.degrees
    padding = chain.numel - sum(placement.numel for placement in placements)
    yield (
        f"layout of {len(placements)} members in {chain.numel} elements ({padding} padding), "
        f"zero3={degrees.zero3} zero2={degrees.zero2} zero1={degrees.zero1}, world {chain.world}"
    )
    for level in (Level.ZERO3, Level.ZERO2, Level.ZERO1):
        chunks = degrees.chunks(level)
        yield (
            f"  {level}: {chunks} chunks of {chain.numel // chunks}, "
            f"{chain.world // chunks} replicas, owners {_ranks(chain.owners(level))}"
        )


def _members(placements: Sequence[Placement], chain: ShardChain) -> Iterator[str]:
    owners = chain.owners(Level.ZERO1)
    chunk = chain.numel // len(owners)
    width = max((len(placement.name) for placement in placements), default=0)
    for placement in placements:
        holders = owners[_chunks_of(placement, chunk)]
        yield (
            f"  {placement.name:<{width}}  {placement.offset}..{placement.stop}  "
            f"zero1 on {_ranks(holders)}"
        )


def _chunks_of(placement: Placement, chunk: int) -> slice:
    if placement.numel == 0:
        return slice(0, 0)
    return slice(placement.offset // chunk, -(-placement.stop // chunk))


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return "no rank"
    shown = " ".join(map(str, ranks[:_SHOWN_RANKS]))
    return shown if len(ranks) <= _SHOWN_RANKS else f"{shown} ... ({len(ranks)} ranks)"
