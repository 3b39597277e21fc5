"""Reduce-scatter into persistent accumulators, in a fixed order of summation."""

from collections.abc import Sequence

import torch

from sshsdp_zerosm.builders.group import Group, Regions
from sshsdp_zerosm.ops import Op, Reduce, Signal, Wait, check_payload
from sshsdp_zerosm.region import Region
from sshsdp_zerosm.schedule import Schedule


def reduce_scatter(
    name: str,
    *,
    inputs: Regions,
    accumulators: Regions,
    dtype: torch.dtype,
    accumulator: torch.dtype,
    group: Sequence[int],
    world: int,
    slot: str,
    scale: float = 1.0,
) -> Schedule:
    """Each member sums its chunk of all members' inputs, in group order, into its accumulator.

    Phases, always in this order, on all members equally often:

    - "acquire": wait until the others have read the own input of the round before; then the
      own input may be written.
    - "ready": tell the others that the own input is complete.
    - "reduce": wait for the others' inputs, sum, tell the others that theirs were read. With
      ``run(..., accumulate=True)`` the sum is added to the accumulator, else it overwrites it.

    Args:
        name: of the schedule.
        inputs: ``inputs[i]`` is the whole local input of ``group[i]``, in elements of `dtype`; or a
            function of the rank.
        accumulators: ``accumulators[i]`` is the chunk of ``group[i]`` in elements of
            `accumulator`. Chunks follow each other in group order and together are as long as an
            input; they may differ in length and be empty.
        dtype: of the inputs: float32, float64 or bfloat16.
        accumulator: float32 or float64.
        group: ranks that take part.
        world: number of ranks.
        slot: names the input memory. Schedules that use the same memory in turns name the same
            slot and share its credits.
        scale: factor on the sum.

    Raises:
        ValueError: regions that don't fit together, or a dtype that can't be reduced.
    """
    members = Group(tuple(group), world)
    whole, sums = members.owned("inputs", inputs), members.owned("accumulators", accumulators)
    check_payload(dtype, accumulator)
    if not (whole.lazy or sums.lazy):
        scatter_counts(whole.all(), sums.all(), dtype, accumulator)
    ready, done = f"{slot}.ready", f"{slot}.done"

    def acquire(_: int, rank: int) -> list[Op]:
        return [Wait(peer, done, credit=1) for peer in members.others(rank)]

    def announce(_: int, rank: int) -> list[Op]:
        return [Signal(ready, members.others(rank))]

    def reduce(index: int, rank: int) -> list[Op]:
        others = members.others(rank)
        counts = scatter_counts(whole.all(), sums.all(), dtype, accumulator)
        start = sum(counts[:index]) * dtype.itemsize
        nbytes = counts[index] * dtype.itemsize
        ops: list[Op] = [Wait(peer, ready) for peer in others]
        if nbytes:
            chunks = tuple(region.part(start, nbytes) for region in whole.all())
            ops.append(Reduce(chunks, sums[index], dtype, accumulator, scale))
        return [*ops, Signal(done, others)]

    phases = {"acquire": acquire, "ready": announce, "reduce": reduce}
    return members.schedule(name, phases, (done, ready))


def scatter_counts(
    inputs: Sequence[Region],
    accumulators: Sequence[Region],
    dtype: torch.dtype,
    accumulator: torch.dtype,
) -> list[int]:
    """Elements per chunk; ValueError unless they add up to every input."""
    counts = [region.numel(accumulator) for region in accumulators]
    together = sum(counts)
    for region in inputs:
        if region.numel(dtype) != together:
            raise ValueError(
                f"expected inputs of {together} elements, as many as all accumulators have, "
                f"got {region} ({dtype})"
            )
    return counts
