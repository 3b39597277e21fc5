"""Reduce-scatter over several nodes: one partial sum per node and chunk crosses."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from sshsdp_zerosm.builders.cuts import ALIGNMENT, even_slice, padded, turns
from sshsdp_zerosm.builders.group import Regions
from sshsdp_zerosm.builders.partials import Partials
from sshsdp_zerosm.builders.placement import Placement
from sshsdp_zerosm.builders.reduce_scatter import reduce_scatter, scatter_counts
from sshsdp_zerosm.ops import Op, Reduce, Signal, Wait, check_payload
from sshsdp_zerosm.region import Region
from sshsdp_zerosm.schedule import Schedule
from sshsdp_zerosm.topology import Topology


def hierarchical_reduce_scatter(
    name: str,
    *,
    inputs: Regions,
    accumulators: Regions,
    dtype: torch.dtype,
    accumulator: torch.dtype,
    group: Sequence[int],
    topology: Topology,
    workspace: Regions,
    slot: str,
    chunk_bytes: int,
    scale: float = 1.0,
    channels: str | None = None,
) -> Schedule:
    """Each member sums its chunk of all members' inputs into its accumulator, in two levels.

    The partial sum of a node is that of its members' inputs in group order; the sum is that of the
    partials, in the order in which nodes first appear in the group. It is scaled, rounded once and
    then added to the accumulator or stored there: ``acc + scale * ((p0 + p1) + p2)``.

    Phases "acquire", "ready" and "reduce" as in `reduce_scatter`, always in this order, on all
    members equally often, and with the same channels of the slot; only members of the same node
    read an input. "reduce" also is in the same order among other phases on all members.

    On one node this is `reduce_scatter`, bit for bit.

    Args:
        name: of the schedule.
        inputs: as for `reduce_scatter`, or a function of the rank.
        accumulators: as for `reduce_scatter`, or a function of the rank.
        dtype: of the inputs: float32, float64 or bfloat16.
        accumulator: float32 or float64; partials are of this dtype.
        group: ranks that take part, on any nodes, not necessarily equally many on each.
        topology: which ranks share a node.
        workspace: ``workspace[i]`` is memory of ``group[i]``, or a function of the rank; at least
            `reduce_scatter_workspace` bytes. All programs of a rank may use the same: "reduce"
            leaves nothing in it.
        slot: names the input memory; see `reduce_scatter`.
        chunk_bytes: of the longest chunk's partial sum per turn; one is summed while another is
            sent.
        scale: factor on the sum.
        channels: name of the channels between nodes; None means `name`. Programs of the same group
            that run in the same order on all ranks may share them.

    Raises:
        ValueError: regions that don't fit together, or a dtype that can't be reduced.
    """
    placement = Placement.of(tuple(group), topology)
    prefix = name if channels is None else channels
    ready, done = f"{slot}.ready", f"{slot}.done"
    names = (done, ready, *Partials.channels(prefix))
    members = placement.group
    spaces = members.owned("workspace", workspace)
    if len(placement.nodes) == 1:
        flat = reduce_scatter(
            name, inputs=inputs, accumulators=accumulators, dtype=dtype, accumulator=accumulator,
            group=group, world=topology.world, slot=slot, scale=scale,
        )  # fmt: skip
        return replace(flat, channels=names, least_between=lambda _: 0)
    whole, sums = members.owned("inputs", inputs), members.owned("accumulators", accumulators)
    check_payload(dtype, accumulator)
    if not (whole.lazy or sums.lazy):
        scatter_counts(whole.all(), sums.all(), dtype, accumulator)

    def siblings(place: int) -> tuple[int, ...]:
        return placement.ranks(placement.siblings(place))

    def acquire(place: int, _: int) -> list[Op]:
        return [Wait(peer, done, credit=1) for peer in siblings(place)]

    def announce(place: int, _: int) -> list[Op]:
        return [Signal(ready, siblings(place))]

    def reduce(place: int, _: int) -> list[Op]:
        counts = [region.numel(accumulator) for region in sums.all()]
        starts = list(itertools.accumulate(counts, initial=0))
        steps = Partials(placement, prefix, dtype, accumulator, counts, chunk_bytes)

        def chunk(member: int, owner: int) -> Region:
            source = whole[member]
            if source.numel(dtype) != starts[-1]:
                raise ValueError(f"expected inputs of {starts[-1]} elements, got {source}")
            size = dtype.itemsize
            return source.part(starts[owner] * size, counts[owner] * size)

        def add(partials: tuple[Region, ...], start: int, numel: int) -> Reduce:
            size = accumulator.itemsize
            target = sums[place].part(start * size, numel * size)
            return Reduce(partials, target, accumulator, accumulator, scale)

        return [
            *steps.open(place),
            *(Wait(peer, ready) for peer in siblings(place)),
            *steps.send(place, chunk, spaces.__getitem__),
            *steps.keep(place, chunk, spaces.__getitem__),
            Signal(done, siblings(place)),
            *steps.total(place, spaces.__getitem__, add),
            *steps.settle(place, spaces.__getitem__),
        ]

    def share(place: int) -> int:
        return sums[place].nbytes * (len(placement.nodes) - 1)

    phases = {"acquire": acquire, "ready": announce, "reduce": reduce}
    return members.schedule(name, phases, names, share)


def reduce_scatter_workspace(
    *,
    counts: Sequence[int],
    accumulator: torch.dtype,
    group: Sequence[int],
    topology: Topology,
    chunk_bytes: int,
) -> int:
    """Bytes of workspace that suffice for every member of a `hierarchical_reduce_scatter`.

    Args:
        counts: elements of each member's chunk, or of the longest one alone.
        accumulator: dtype of the partial sums.
        group: as for the builder.
        topology: as for the builder.
        chunk_bytes: as for the builder.
    """
    placement = Placement.of(tuple(group), topology)
    if len(placement.nodes) == 1:
        return 0
    longest = max(counts) * accumulator.itemsize
    if not (number := turns(longest, chunk_bytes)):
        return 0
    sizes = Counter(map(len, placement.nodes))
    clients = max(
        sum(-(-size // own) * count for size, count in sizes.items()) - 1 for own in sizes
    )
    buffer = padded(even_slice(longest, number, ALIGNMENT, 0)[1])
    return len(placement.nodes) * padded(longest) + 2 * clients * buffer
