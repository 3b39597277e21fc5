"""Hierarchical schedules compute what two-level torch does, and exactly what flat ones do."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sshsdp_zerosm import (
    Loopback,
    Put,
    Reduce,
    Region,
    Topology,
    all_gather_pull,
    all_reduce,
    hierarchical_all_gather,
    hierarchical_reduce_scatter,
    reduce_scatter,
)

from .stories import ALGORITHMS, Story, changed, groups_of, spread, two_level


def same(got, expected):
    return len(got) == len(expected) and all(map(torch.equal, got, expected))


@st.composite
def stories(draw):
    topology = Topology(draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    ranks = draw(st.permutations(range(topology.world)))
    group = tuple(ranks[: draw(st.integers(1, topology.world))])
    counts = draw(st.lists(st.integers(0, 70), min_size=len(group), max_size=len(group)))
    return Story(
        topology,
        group,
        tuple(counts),
        draw(st.sampled_from([torch.float32, torch.bfloat16])),
        draw(st.sampled_from([64, 128, 1024])),
        draw(st.sampled_from([1.0, 0.5, 1 / 3])),
        draw(st.sampled_from([1, 16])),
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=60, deadline=None)
@given(story=stories(), seed=st.integers(0))
def test_loopback_equals_two_level_torch_in_any_interleaving(algorithm, story, seed):
    assert same(*story.play(algorithm, turns=3, seed=seed))


def test_the_data_tells_a_two_level_sum_from_a_flat_one():
    story = Story(Topology(2, 2), (0, 1, 2, 3), (40,) * 4)
    got, expected = story.play("scatter", turns=1)
    values = [spread(story.numel, story.dtype, place) for place in range(4)]
    assert same(got, expected)
    assert not same(got, two_level(values, [[0, 1, 2, 3]]).split(story.counts))
    assert not same(got, two_level(values, [[0, 2], [1, 3]]).split(story.counts))


@pytest.mark.parametrize("algorithm", ["scatter", "all_reduce"])
def test_every_swap_in_a_sum_of_three_changes_the_result(algorithm):
    """The values, not the proof, see the order of summation."""
    story = Story(Topology(3, 3), tuple(range(9)), (256,) * 9, chunk_bytes=1024)
    _, expected = story.play(algorithm)
    schedule = story.schedule(algorithm)
    sums = [
        (phase, rank, at)
        for phase in schedule.phases
        for rank in (0, 4, 8)
        for at, op in enumerate(schedule.ops(phase, rank))
        if isinstance(op, Reduce)
    ]
    assert len(sums) >= 9
    for where in sums:

        def rotated(phase, rank, ops, where=where):
            if (phase, rank) != where[:2]:
                return ops
            op = ops[where[2]]
            mutant = replace(op, sources=(*op.sources[1:], op.sources[0]))
            return (*ops[: where[2]], mutant, *ops[where[2] + 1 :])

        got, _ = story.play(algorithm, schedule=changed(schedule, rotated))
        assert not same(got, expected), where


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("topology", [Topology(1, 4), Topology(3, 4)], ids=str)
def test_on_one_node_the_operations_are_those_of_the_flat_schedule(algorithm, topology):
    story = Story(topology, (3, 1, 0), (5, 0, 9), scale=1 / 3)
    world, group = topology.world, story.group
    flat = {
        "gather": lambda: all_gather_pull(
            "gather", shards=story.shards, outputs=story.whole("output", torch.float32),
            group=group, world=world,
        ),
        "scatter": lambda: reduce_scatter(
            "scatter", inputs=story.whole("input", story.dtype), accumulators=story.sums,
            dtype=story.dtype, accumulator=story.accumulator, group=group, world=world,
            slot="slot", scale=story.scale,
        ),
        "all_reduce": lambda: all_reduce(
            "all_reduce", buffers=story.whole("buffer", story.dtype), dtype=story.dtype,
            accumulator=story.accumulator, group=group, world=world, chunk_align=1,
            scale=story.scale,
        ),
    }[algorithm]()  # fmt: skip
    schedule = story.schedule(algorithm)
    assert story.space_bytes == 0
    for rank in range(world):
        assert schedule.describe(rank) == flat.describe(rank)
    assert same(*story.play(algorithm))


@pytest.mark.parametrize("topology", [Topology(2, 2), Topology(3, 2), Topology(2, 3)], ids=str)
def test_the_workspace_is_used_to_the_last_byte(topology):
    for group in groups_of(topology):
        story = Story(topology, group, (48,) * len(group))
        if len(story.nodes) == 1:
            continue
        schedule = story.scatter()
        ops = [op for rank in group for op in schedule.ops("reduce", rank)]
        last = max(op.source.stop for op in ops if isinstance(op, Put))
        assert last == story.space_bytes


def test_a_workspace_that_is_too_small_is_refused():
    story = Story(Topology(2, 1), (0, 1), (40, 40))
    small = [region.part(0, region.nbytes - 64) for region in story.space]
    schedule = hierarchical_reduce_scatter(
        "r", inputs=story.whole("input", torch.float32), accumulators=story.sums,
        dtype=torch.float32, accumulator=torch.float32, workspace=small, slot="s", **story.common,
    )  # fmt: skip
    with pytest.raises(ValueError, match="expected a part inside space"):
        schedule.ops("reduce", 0)


def test_a_shard_may_lie_in_its_place_in_the_output():
    topology = Topology(2, 2)
    loopback = Loopback(4, topology=topology)
    outputs = [Region("output", rank, 0, 4 * 128) for rank in range(4)]
    schedule = hierarchical_all_gather(
        "g", shards=lambda rank: outputs[rank].part(128 * rank, 128), outputs=outputs,
        group=range(4), topology=topology, chunk_bytes=64,
    )  # fmt: skip
    memories = [transport.arena("output", 512).tensor() for transport in loopback.transports]
    for rank, memory in enumerate(memories):
        memory[128 * rank :][:128] = rank + 1
    programs = [transport.compile(schedule) for transport in loopback.transports]
    loopback.run(programs, "gather", seed=3)
    for memory in memories:
        assert memory.view(4, 128).eq(torch.arange(1, 5)[:, None]).all()
    assert [transport.counters.put_bytes for transport in loopback.transports] == [128] * 4
    assert [transport.counters.pulled_bytes for transport in loopback.transports] == [256] * 4


def test_a_read_across_nodes_is_refused_with_what_to_do():
    loopback = Loopback(4, topology=Topology(2, 2))
    transport = loopback.transports[1]
    transport.arena("in", 16)
    transport.arena("out", 64)
    schedule = all_gather_pull(
        "g", shards=[Region("in", rank, 0, 16) for rank in range(4)],
        outputs=[Region("out", rank, 0, 64) for rank in range(4)], group=range(4), world=4,
    )  # fmt: skip
    message = r"schedule 'g': rank 1 can't read in\[2\].* another node: let rank 2 put it"
    with pytest.raises(ValueError, match=message):
        transport.compile(schedule)
    with pytest.raises(ValueError, match="expected a topology of 4 ranks, got 2x3"):
        Loopback(4, topology=Topology(2, 3))
