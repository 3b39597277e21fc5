"""All-gather in which every member delivers its shard to the others."""

from collections.abc import Sequence

from sshsdp_zerosm.builders.group import Group, Regions, check_gather
from sshsdp_zerosm.ops import Op, Put, Signal, Wait
from sshsdp_zerosm.schedule import Schedule


def all_gather_push(
    name: str,
    *,
    shards: Regions,
    outputs: Regions,
    group: Sequence[int],
    world: int,
) -> Schedule:
    """Every member's output becomes the concatenation of the shards, in group order.

    Phases, always in this order, on all members equally often:

    - "acquire": wait for the others' credit, so that their outputs may be overwritten.
    - "gather": put the own shard everywhere, signal, wait for the others' shards.
    - "release": tell the others that the own output was consumed.

    Args:
        name: of the schedule; its channels are called after it.
        shards: ``shards[i]`` is memory of ``group[i]``, or a function of the rank; lengths may
            differ, 0 is legal.
        outputs: ``outputs[i]`` is memory of ``group[i]``, as long as all shards together.
        group: ranks that take part.
        world: number of ranks.

    Raises:
        ValueError: regions that don't fit together.
    """
    members = Group(tuple(group), world)
    owned, outs = members.owned("shards", shards), members.owned("outputs", outputs)
    check_gather(owned, outs)
    filled, consumed = f"{name}.filled", f"{name}.consumed"

    def acquire(_: int, rank: int) -> list[Op]:
        return [Wait(peer, consumed, credit=1) for peer in members.others(rank)]

    def gather(index: int, rank: int) -> list[Op]:
        shard = owned[index]
        lengths = [region.nbytes for region in owned.all()]
        start = sum(lengths[:index])
        others = members.others(rank)
        targets = [outs[members.index[peer]].part(start, shard.nbytes) for peer in (*others, rank)]
        puts: list[Op] = [
            Put(shard, target) for target in targets if shard.nbytes and shard != target
        ]
        waits = [Wait(peer, filled) for peer in others]
        return [*puts, Signal(filled, others), *waits]

    def release(_: int, rank: int) -> list[Op]:
        return [Signal(consumed, members.others(rank))]

    phases = {"acquire": acquire, "gather": gather, "release": release}
    return members.schedule(name, phases, (consumed, filled))
