"""All-reduce in place: every member sums one slice and fetches the others'."""

from collections.abc import Sequence

import torch

from sshsdp_zerosm.builders.cuts import even_slices
from sshsdp_zerosm.builders.group import Group, Regions
from sshsdp_zerosm.ops import Op, Pull, Reduce, Signal, Wait, check_payload
from sshsdp_zerosm.region import Region
from sshsdp_zerosm.schedule import Schedule


def all_reduce(
    name: str,
    *,
    buffers: Regions,
    dtype: torch.dtype,
    accumulator: torch.dtype,
    group: Sequence[int],
    world: int,
    chunk_align: int,
    scale: float = 1.0,
) -> Schedule:
    """Replace every member's buffer by `scale` times the sum of all, bit-equal on every member.

    Phase "reduce". Member i sums slice i over the group, in group order, in `accumulator`, scales,
    rounds it to `dtype` in its own buffer, and pulls the other slices from their owners. When
    the phase ends nobody reads the own buffer any more.

    Args:
        name: of the schedule; its channels are called after it.
        buffers: ``buffers[i]`` is memory of ``group[i]``, in elements of `dtype`; or a
            function of the rank. All are equally long.
        dtype: float32, float64 or bfloat16.
        accumulator: float32 or float64.
        group: ranks that take part.
        world: number of ranks.
        chunk_align: slices start at multiples of so many elements; the last ones may be shorter
            or empty.
        scale: factor on the sum.

    Raises:
        ValueError: regions that don't fit together, or a dtype that can't be reduced.
    """
    members = Group(tuple(group), world)
    owned = members.owned("buffers", buffers)
    check_payload(dtype, accumulator)
    slices = even_slices(owned[0].numel(dtype), len(members.ranks), chunk_align)
    if not owned.lazy:
        check_equal(owned.all(), dtype)

    def part(buffer: Region, index: int) -> Region:
        start, numel = slices[index]
        return buffer.part(start * dtype.itemsize, numel * dtype.itemsize)

    def reduce(index: int, rank: int) -> list[Op]:
        others = members.others(rank)
        buffers = owned.all()
        check_equal(buffers, dtype)
        ops = _meet(f"{name}.ready", others)
        if slices[index][1]:
            sources = tuple(part(buffer, index) for buffer in buffers)
            own = part(buffers[index], index)
            ops.append(
                Reduce(sources, own, dtype, accumulator, scale, target_dtype=dtype, overwrite=True)
            )
        ops += _meet(f"{name}.reduced", others)
        ops += [
            Pull(part(buffers[at], at), part(buffers[index], at))
            for at in (members.index[peer] for peer in others)
            if slices[at][1]
        ]
        return ops + _meet(f"{name}.done", others)

    channels = [f"{name}.{step}" for step in ("ready", "reduced", "done")]
    return members.schedule(name, {"reduce": reduce}, channels)


def check_equal(buffers: Sequence[Region], dtype: torch.dtype) -> None:
    """ValueError unless all have as many elements of `dtype`."""
    if len({buffer.numel(dtype) for buffer in buffers}) != 1:
        raise ValueError(f"expected equally long buffers, got {', '.join(map(str, buffers))}")


def _meet(channel: str, others: tuple[int, ...]) -> list[Op]:
    return [Signal(channel, others), *(Wait(peer, channel) for peer in others)]
