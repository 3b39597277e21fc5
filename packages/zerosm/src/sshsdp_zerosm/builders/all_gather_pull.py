"""All-gather in which every member fetches what it lacks."""

from collections.abc import Sequence

from sshsdp_zerosm.builders.group import Group, Regions, check_gather, gather_parts
from sshsdp_zerosm.ops import Op, Pull, WaitGeneration
from sshsdp_zerosm.schedule import Schedule


def all_gather_pull(
    name: str,
    *,
    shards: Regions,
    outputs: Regions,
    group: Sequence[int],
    world: int,
) -> Schedule:
    """Every member's output becomes the concatenation of the shards, in group order.

    Phase "gather": wait until the others have published, then pull. Nobody has to gather at the
    same time, or at all: the shards stay as they are until the next ``Transport.idle``.

    Args:
        name: of the schedule.
        shards: ``shards[i]`` is memory of ``group[i]``, or a function of the rank; lengths may
            differ, 0 is legal.
        outputs: ``outputs[i]`` is memory of ``group[i]``, as long as all shards together. A
            member whose shard already is its part of its output doesn't copy it.
        group: ranks that take part.
        world: number of ranks.

    Raises:
        ValueError: regions that don't fit together.
    """
    members = Group(tuple(group), world)
    owned, filled = members.owned("shards", shards), members.owned("outputs", outputs)
    check_gather(owned, filled)

    def gather(index: int, rank: int) -> list[Op]:
        all_shards = owned.all()
        lengths = [shard.nbytes for shard in all_shards]
        shard_of = dict(zip(members.ranks, all_shards, strict=True))
        parts = dict(zip(members.ranks, gather_parts(lengths, filled[index]), strict=True))
        others = members.others(rank)
        waits: list[Op] = [WaitGeneration(peer) for peer in others]
        pulls = [
            Pull(shard_of[peer], parts[peer])
            for peer in (*others, rank)
            if shard_of[peer].nbytes and shard_of[peer] != parts[peer]
        ]
        return waits + pulls

    return members.schedule(name, {"gather": gather})
