"""Many-to-many: pieces of memory from any ranks to any others."""

from collections.abc import Sequence

from sshsdp_zerosm.ops import Fence, Op, Pull, Put, Signal, Wait
from sshsdp_zerosm.region import Region
from sshsdp_zerosm.schedule import Schedule
from sshsdp_zerosm.topology import Topology


def exchange(name: str, *, moves: Sequence[tuple[Region, Region]], topology: Topology) -> Schedule:
    """Copy every source to its target.

    Phase "exchange", on all ranks named equally often and in the same order among other phases:
    tell the owners of what will come that the own targets may be overwritten, put everything for
    one rank after the other, the next rank first, signal, wait. When it ends nobody reads the own
    sources or writes the own targets any more. Sources must not be targets of the same exchange.

    Args:
        name: of the schedule; its channels are called after it.
        moves: (source, target), of any ranks, equally long. What lies side by side in source and
            target moves as one.
        topology: which ranks share a node; it counts for `Schedule.least_between` alone.

    Raises:
        ValueError: regions that are not equally long, or of ranks outside the world.
    """
    world = topology.world
    between: dict[tuple[int, int], list[tuple[Region, Region]]] = {}
    for source, target in moves:
        if source.nbytes != target.nbytes:
            raise ValueError(f"expected equally long regions, got {source} and {target}")
        if max(source.rank, target.rank) >= world:
            raise ValueError(f"expected ranks below {world}, got {source} and {target}")
        if source.nbytes and source != target:
            between.setdefault((source.rank, target.rank), []).append((source, target))
    merged = {pair: _coalesced(parts) for pair, parts in between.items()}
    sources: dict[int, list[int]] = {}
    targets: dict[int, list[int]] = {}
    for source_rank, target_rank in sorted(merged):
        if source_rank != target_rank:
            sources.setdefault(target_rank, []).append(source_rank)
            targets.setdefault(source_rank, []).append(target_rank)
    ready, sent = f"{name}.ready", f"{name}.sent"

    def ops(rank: int) -> list[Op]:
        senders = _after(rank, sources.get(rank, []))
        receivers = _after(rank, targets.get(rank, []))
        found: list[Op] = [Signal(ready, senders)] if senders else []
        for receiver in receivers:
            found.append(Wait(receiver, ready))
            found += [Put(*move) for move in merged[rank, receiver]]
        if receivers:
            found.append(Signal(sent, receivers))
        found += [Pull(*move) for move in merged.get((rank, rank), [])]
        found += [Wait(sender, sent) for sender in senders]
        puts = [move for receiver in receivers for move in merged[rank, receiver]]
        return found + [Fence(source) for source in dict.fromkeys(source for source, _ in puts)]

    def share(rank: int) -> int:
        return sum(
            source.nbytes
            for receiver in targets.get(rank, [])
            if topology.node_of(receiver) != topology.node_of(rank)
            for source, _ in merged[rank, receiver]
        )

    return Schedule(name, world, {"exchange": ops}, (ready, sent), share)


def _coalesced(moves: list[tuple[Region, Region]]) -> list[tuple[Region, Region]]:
    """Runs of moves that continue each other, as one move each."""
    ordered = sorted(moves, key=lambda move: (move[1].arena, move[1].offset))
    result = [ordered[0]]
    for source, target in ordered[1:]:
        last_source, last_target = result[-1]
        if _continues(last_source, source) and _continues(last_target, target):
            result[-1] = (_joined(last_source, source), _joined(last_target, target))
        else:
            result.append((source, target))
    return result


def _continues(first: Region, second: Region) -> bool:
    return first.arena == second.arena and first.stop == second.offset


def _joined(first: Region, second: Region) -> Region:
    return Region(first.arena, first.rank, first.offset, first.nbytes + second.nbytes)


def _after(rank: int, peers: list[int]) -> tuple[int, ...]:
    """Ascending from the next rank on, wrapping around."""
    return tuple(sorted(peers, key=lambda peer: (peer < rank, peer)))
