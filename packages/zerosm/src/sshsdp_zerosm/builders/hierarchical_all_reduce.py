"""All-reduce in place over several nodes: a reduce-scatter and an all-gather of the slices."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from sshsdp_zerosm.builders.all_reduce import all_reduce, check_equal
from sshsdp_zerosm.builders.cuts import even_slices
from sshsdp_zerosm.builders.distribution import Distribution
from sshsdp_zerosm.builders.group import Regions
from sshsdp_zerosm.builders.hierarchical_reduce_scatter import reduce_scatter_workspace
from sshsdp_zerosm.builders.partials import Partials
from sshsdp_zerosm.builders.placement import Placement
from sshsdp_zerosm.ops import Op, Reduce, Signal, Wait, check_payload
from sshsdp_zerosm.region import Region
from sshsdp_zerosm.schedule import Schedule
from sshsdp_zerosm.topology import Topology


def hierarchical_all_reduce(
    name: str,
    *,
    buffers: Regions,
    dtype: torch.dtype,
    accumulator: torch.dtype,
    group: Sequence[int],
    topology: Topology,
    workspace: Regions,
    chunk_align: int,
    chunk_bytes: int,
    scale: float = 1.0,
    channels: str | None = None,
) -> Schedule:
    """Replace every member's buffer by `scale` times the sum of all, bit-equal on every member.

    Phase "reduce", on all members equally often and in the same order among other phases. Member i
    sums slice i in the two levels of `hierarchical_reduce_scatter`, scales and rounds it to `dtype`
    in its own buffer; then slices are distributed as by `hierarchical_all_gather`. When the phase
    ends nobody reads or writes the own buffer or workspace any more.

    On one node this is `all_reduce`, bit for bit.

    Args:
        name: of the schedule.
        buffers: as for `all_reduce`, or a function of the rank.
        dtype: float32, float64 or bfloat16.
        accumulator: float32 or float64; partials are of this dtype.
        group: ranks that take part, on any nodes, not necessarily equally many on each.
        topology: which ranks share a node.
        workspace: ``workspace[i]`` is memory of ``group[i]``, or a function of the rank; at least
            `all_reduce_workspace` bytes. All programs of a rank may use the same.
        chunk_align: as for `all_reduce`.
        chunk_bytes: of the longest slice's partial sum, and of its result, per turn.
        scale: factor on the sum.
        channels: name of the channels; None means `name`. Programs of the same group that run in
            the same order on all ranks may share them.

    Raises:
        ValueError: regions that don't fit together, or a dtype that can't be reduced.
    """
    placement = Placement.of(tuple(group), topology)
    prefix = name if channels is None else channels
    ready, reduced = f"{prefix}.ready", f"{prefix}.reduced"
    names = [ready, reduced, *Partials.channels(prefix), *Distribution.channels(prefix)]
    members = placement.group
    spaces = members.owned("workspace", workspace)
    if len(placement.nodes) == 1:
        flat = all_reduce(
            prefix, buffers=buffers, dtype=dtype, accumulator=accumulator, group=group,
            world=topology.world, chunk_align=chunk_align, scale=scale,
        )  # fmt: skip
        return replace(flat, name=name, channels=tuple(names), least_between=lambda _: 0)
    owned = members.owned("buffers", buffers)
    check_payload(dtype, accumulator)
    slices = even_slices(owned[0].numel(dtype), len(members.ranks), chunk_align)
    if not owned.lazy:
        check_equal(owned.all(), dtype)

    def part(holder: int, owner: int) -> Region:
        start, numel = slices[owner]
        return owned[holder].part(start * dtype.itemsize, numel * dtype.itemsize)

    def own_part(place: int) -> Region:
        return part(place, place)

    def reduce(place: int, _: int) -> list[Op]:
        counts = [numel for _, numel in slices]
        lengths = [numel * dtype.itemsize for numel in counts]
        sums = Partials(placement, prefix, dtype, accumulator, counts, chunk_bytes)
        copies = Distribution(placement, prefix, lengths, own_part, part, chunk_bytes)
        siblings = placement.ranks(placement.siblings(place))

        def add(partials: tuple[Region, ...], start: int, numel: int) -> Reduce:
            size = dtype.itemsize
            target = own_part(place).part(start * size, numel * size)
            return Reduce(
                partials,
                target,
                accumulator,
                accumulator,
                scale,
                target_dtype=dtype,
                overwrite=True,
            )

        def meet(channel: str) -> list[Op]:
            if not siblings:
                return []
            return [Signal(channel, siblings), *(Wait(peer, channel) for peer in siblings)]

        # A slice put to another node, or pulled from a sibling, needs no room of its own there: it
        # was computed from what the agent there, the only reader of that room, has read from it.
        # Partials need no fence at the end: the slices that they became part of have arrived.
        return [
            *sums.open(place),
            *meet(ready),
            *sums.send(place, part, spaces.__getitem__),
            *sums.keep(place, part, spaces.__getitem__),
            *sums.total(place, spaces.__getitem__, add),
            *copies.puts(place),
            *meet(reduced),
            *copies.within(place),
            *copies.arrivals(place),
            *copies.finish(place),
        ]

    def share(place: int) -> int:
        copies = len(placement.nodes) - 1
        return slices[place][1] * copies * (accumulator.itemsize + dtype.itemsize)

    return members.schedule(name, {"reduce": reduce}, names, share)


def all_reduce_workspace(
    *,
    numel: int,
    accumulator: torch.dtype,
    group: Sequence[int],
    topology: Topology,
    chunk_align: int,
    chunk_bytes: int,
) -> int:
    """Bytes of workspace that suffice for every member of a `hierarchical_all_reduce`.

    Args:
        numel: elements of a buffer.
        accumulator: dtype of the partial sums.
        group: as for the builder.
        topology: as for the builder.
        chunk_align: as for the builder.
        chunk_bytes: as for the builder.
    """
    longest = even_slices(numel, len(group), chunk_align)[0][1]
    return reduce_scatter_workspace(
        counts=[longest],
        accumulator=accumulator,
        group=group,
        topology=topology,
        chunk_bytes=chunk_bytes,
    )
