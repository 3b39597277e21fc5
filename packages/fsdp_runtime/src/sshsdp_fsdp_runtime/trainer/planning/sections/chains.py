"""Shard chains: into how many chunks a list is cut at each level, and which ranks hold them."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from sshsdp_fsdp_runtime.plan import Plan
from sshsdp_fsdp_runtime.trainer.planning.sections.text import (
    degrees_text,
    ranks_text,
    table,
)
from sshsdp_shardchain import Level, ShardChain

_OWNERS = 4096  # of more chunks than that the owners follow from the degrees, as documented


@dataclass(frozen=True, slots=True)
class ChainRow:
    """One level of the chain of all lists with the same degrees.

    Attributes:
        degrees: zero3,zero2,zero1.
        level: zero3, zero2 or zero1.
        holds: what is kept at that level.
        chunks: into how many the list is cut.
        replicas: how many ranks hold the same chunk.
        nodes: over how many nodes the gathering group of the rank spans.
        group: the ranks from which the rank's chunk of the level above is gathered, in the order
            of the buffer.
        owners: holders of all chunks, in the order of the buffer; None where they are too many.
    """

    degrees: str
    level: str
    holds: str
    chunks: int
    replicas: int
    nodes: int
    group: tuple[int, ...]
    owners: tuple[int, ...] | None


def chain_rows(plan: Plan, rank: int) -> tuple[ChainRow, ...]:
    """Three rows per set of degrees, as `rank` sees them."""
    chains = {atom.degrees: atom.layout.chain for atom in plan.atoms}
    return tuple(
        _row(plan, chain, level, holds, rank)
        for chain in chains.values()
        for level, holds in (
            (Level.ZERO3, "weights"),
            (Level.ZERO2, "sums of gradients"),
            (Level.ZERO1, "main weights, state"),
        )
    )


def chain_table(rows: Sequence[ChainRow], rank: int) -> Table:
    """For a terminal."""
    result = table(
        f"shard chains, seen from rank {rank}",
        *("=degrees", "=level", "holds", ">chunks", ">copies"),
        *("gathered from", ">nodes", "holders in buffer order"),
    )
    for row in rows:
        result.add_row(
            row.degrees,
            row.level,
            row.holds,
            f"{row.chunks:,}",
            f"{row.replicas:,}",
            ranks_text(row.group),
            f"{row.nodes:,}",
            f"{row.chunks:,} of them" if row.owners is None else ranks_text(row.owners),
        )
    return result


def _row(plan: Plan, chain: ShardChain, level: Level, holds: str, rank: int) -> ChainRow:
    chunks = chain.degrees.chunks(level)
    group = chain.group(level, rank)
    replica = min(chain.replicas(level, rank).index(rank), chain.world // chunks - 1)
    return ChainRow(
        degrees=degrees_text(chain.degrees),
        level=level.value,
        holds=holds,
        chunks=chunks,
        replicas=chain.world // chunks,
        nodes=len({plan.topology.node_of(peer) for peer in group}),
        group=group,
        owners=chain.owners(level, replica) if chunks <= _OWNERS else None,
    )
