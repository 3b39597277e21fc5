"""All-gather over several nodes: each shard crosses once to each other node."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from sshsdp_zerosm.builders.all_gather_pull import all_gather_pull
from sshsdp_zerosm.builders.distribution import Distribution
from sshsdp_zerosm.builders.group import Regions, check_gather
from sshsdp_zerosm.builders.placement import Placement
from sshsdp_zerosm.ops import Op, Signal, Wait, WaitGeneration
from sshsdp_zerosm.region import Region
from sshsdp_zerosm.schedule import Schedule
from sshsdp_zerosm.topology import Topology


def hierarchical_all_gather(
    name: str,
    *,
    shards: Regions,
    outputs: Regions,
    group: Sequence[int],
    topology: Topology,
    chunk_bytes: int,
    channels: str | None = None,
) -> Schedule:
    """Every member's output becomes the concatenation of the shards, in group order.

    Phase "gather", on all members equally often and in the same order among other phases: a member
    says that its output may be overwritten, puts its shard into the output of one member of each
    other node, in turns of `chunk_bytes`, and pulls the rest from the members of its own node as it
    arrives. Members of a node wait for each other's generation, as in `all_gather_pull`. When the
    phase ends nobody reads or writes the own output or reads the own shard any more.

    On one node this is `all_gather_pull`.

    Args:
        name: of the schedule.
        shards: ``shards[i]`` is memory of ``group[i]``, or a function of the rank; lengths may
            differ, 0 is legal. A shard may lie in its place in the output.
        outputs: ``outputs[i]`` is memory of ``group[i]``, or a function of the rank; as long as all
            shards together.
        group: ranks that take part, on any nodes, not necessarily equally many on each.
        topology: which ranks share a node.
        chunk_bytes: of the longest shard per turn; what has arrived is distributed within the node
            while the next turn is on its way.
        channels: name of the channels; None means `name`. Gathers of the same group that run in
            the same order on all ranks may share them.

    Raises:
        ValueError: regions that don't fit together.
    """
    placement = Placement.of(tuple(group), topology)
    prefix = name if channels is None else channels
    names = [f"{prefix}.ready", *Distribution.channels(prefix)]
    if len(placement.nodes) == 1:
        flat = all_gather_pull(
            name, shards=shards, outputs=outputs, group=group, world=topology.world
        )
        return replace(flat, channels=tuple(names), least_between=lambda _: 0)
    members = placement.group
    owned, outs = members.owned("shards", shards), members.owned("outputs", outputs)
    check_gather(owned, outs)

    def distribution() -> Distribution:
        lengths = [shard.nbytes for shard in owned.all()]
        starts = list(itertools.accumulate(lengths, initial=0))

        def target(holder: int, owner: int) -> Region:
            output = outs[holder]
            if output.nbytes != starts[-1]:
                raise ValueError(f"expected an output of {starts[-1]} bytes, got {output}")
            return output.part(starts[owner], lengths[owner])

        return Distribution(placement, prefix, lengths, owned.__getitem__, target, chunk_bytes)

    def gather(place: int, _: int) -> list[Op]:
        steps = distribution()
        ready = f"{prefix}.ready"
        clients = placement.ranks(placement.all_clients(place))
        return [
            *([Signal(ready, clients)] if clients else []),
            *(Wait(agent, ready) for agent in placement.ranks(placement.agents(place))),
            *steps.puts(place),
            *map(WaitGeneration, placement.ranks(placement.siblings(place))),
            *steps.within(place),
            *steps.arrivals(place),
            *steps.finish(place),
        ]

    def share(place: int) -> int:
        return owned[place].nbytes * (len(placement.nodes) - 1)

    return members.schedule(name, {"gather": gather}, names, share)
