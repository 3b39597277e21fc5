"""Every builder's schedules are proven for every small topology and a sample of large ones."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sshsdp_zerosm import (
    Fence,
    Idle,
    Publish,
    Pull,
    Put,
    Reduce,
    Region,
    Run,
    Schedule,
    ScheduleError,
    Signal,
    Topology,
    Use,
    Wait,
    WaitGeneration,
    all_gather_aliased,
    all_gather_pull,
    all_gather_push,
    all_reduce,
    by_rank,
    exchange,
    hierarchical_all_gather,
    hierarchical_reduce_scatter,
    merge,
    reduce_scatter,
    verify,
)

from .stories import Story, groups_of

SMALL = [Topology(*shape) for shape in itertools.product(range(1, 5), range(1, 5))]
LARGE = [Topology(8, 8), Topology(16, 4), Topology(64, 2), Topology(5, 7), Topology(64, 8)]


def uneven(group):
    """Lengths with an empty one, one of several turns, and some that end within a cache line."""
    return tuple((40, 0, 19, 70)[place % 4] for place in range(len(group)))


@pytest.mark.parametrize("topology", SMALL, ids=str)
def test_all_algorithms_back_to_back_on_every_small_topology(topology):
    for group in groups_of(topology):
        story = Story(topology, group, uneven(group))
        verified = verify(story.scenes(), topology)
        others = len(story.nodes) - 1
        turns = 4  # of each algorithm
        once = others * story.numel * 4  # bytes of all shards, of all partials, of all slices
        assert verified.moved.between == verified.least_between == turns * 4 * once


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_group_in_any_order_with_any_lengths(data):
    topology = data.draw(st.sampled_from(SMALL))
    ranks = data.draw(st.permutations(range(topology.world)))
    group = tuple(ranks[: data.draw(st.integers(1, topology.world))])
    counts = data.draw(st.lists(st.integers(0, 70), min_size=len(group), max_size=len(group)))
    chunk_bytes = data.draw(st.sampled_from([64, 128, 4096]))
    story = Story(topology, group, tuple(counts), chunk_bytes=chunk_bytes)
    verify(story.scenes(), topology)


@pytest.mark.parametrize("topology", LARGE, ids=str)
def test_groups_across_a_large_topology(topology):
    """Strided groups, neighbours, and any ranks in any order."""
    groups = [
        range(0, topology.world, topology.world // 8),
        range(topology.world - 10, topology.world),
        random.Random(topology.world).sample(range(topology.world), 9),
    ]
    for group in map(tuple, groups):
        story = Story(topology, group, (33,) * len(group))
        verify(story.scenes(), topology, ranks=group)


def test_a_whole_world_of_64_nodes():
    """One turn of the gather in which every rank takes part."""
    topology = Topology(64, 2)
    group = tuple(range(topology.world))
    story = Story(topology, group, (16,) * topology.world)
    schedule = story.gather()
    outputs = story.whole("output", torch.float32)
    scenes = [
        Use(writes=story.shards), Publish(), Run(schedule, "gather"), Use(reads=outputs),
    ]  # fmt: skip
    verified = verify(scenes, topology)
    assert verified.moved.between == 63 * 128 * 64


def test_all_groups_of_a_world_at_once_share_slots_with_another_partition():
    """Gathers of pairs and of strided quadruples take turns in the same output memory."""
    topology = Topology(4, 2)

    def part(name, group_of, arena):
        def of_rank(rank):
            group = group_of(rank)
            return hierarchical_all_gather(
                name,
                shards=lambda peer: Region(arena, peer, 0, 64),
                outputs=lambda peer: Region("slot", peer, 0, 64 * len(group)),
                group=group,
                topology=topology,
                chunk_bytes=64,
            )

        return by_rank(name, world=topology.world, part=of_rank)

    triples = part("triples", lambda rank: tuple(range(rank % 2, 8, 2)), "a")
    pairs = part("pairs", lambda rank: (rank // 2 * 2 + 1, rank // 2 * 2), "b")
    shards = tuple(Region(arena, rank, 0, 64) for arena in "ab" for rank in range(8))
    scenes = [Use(writes=shards), Publish()]
    for schedule, size in [(triples, 4), (pairs, 2), (triples, 4), (triples, 4), (pairs, 2)]:
        slots = tuple(Region("slot", rank, 0, 64 * size) for rank in range(8))
        scenes += [Run(schedule, "gather"), Use(reads=slots), Use(writes=slots)]
    verified = verify(scenes, topology)
    assert verified.moved.between == 3 * 8 * 3 * 64


def test_merged_parts_share_one_turn_of_a_slot():
    """Two lists lie side by side in the slot; their parts meet once, and use one workspace."""
    topology, group = Topology(2, 2), (0, 1, 2, 3)

    def part(name, start, numel, sums):
        return hierarchical_reduce_scatter(
            name,
            inputs=[Region("slot", rank, 4 * start, 4 * numel) for rank in group],
            accumulators=[Region(sums, rank, 0, numel) for rank in group],
            dtype=torch.float32,
            accumulator=torch.float32,
            group=group,
            topology=topology,
            workspace=lambda rank: Region("space", rank, 0, 4096),
            slot="s",
            chunk_bytes=64,
        )

    parts = [part("a", 0, 40, "x"), part("b", 40, 88, "y")]
    both = merge("both", parts, once=("s.ready", "s.done"))
    alone = part("c", 0, 128, "z")
    assert both.ops("acquire", 0) == (Wait(1, "s.done", credit=1),)
    assert both.ops("ready", 0) == (Signal("s.ready", (1,)),)
    inputs = tuple(Region("slot", rank, 0, 512) for rank in group)
    scenes = [
        scene
        for schedule in (both, alone, both, both, alone)
        for scene in (
            Run(schedule, "acquire"),
            Use(writes=inputs),
            Run(schedule, "ready"),
            Run(schedule, "reduce"),
        )
    ]
    verified = verify(scenes, topology)
    assert verified.moved.between == verified.least_between == 5 * 4 * 128
    apart = merge("both", parts)
    with pytest.raises(ScheduleError, match=r"deadlock: rank 0 .* rank 1, channel 's.done'"):
        verify([Run(apart, phase) for phase in apart.phases], topology, initial=inputs)


def regions(arena, world, nbytes):
    return tuple(Region(arena, rank, 0, nbytes) for rank in range(world))


def test_flat_schedules_on_one_node():
    world, kind = 3, {"dtype": torch.float32, "accumulator": torch.float32}
    single = Topology.single(world)
    common = {"group": range(world), "world": world}
    shards, outputs = regions("in", world, 8), regions("out", world, 24)
    inputs, sums = regions("grad", world, 24), regions("sum", world, 8)
    pull = all_gather_pull("pull", shards=shards, outputs=outputs, **common)
    push = all_gather_push("push", shards=shards, outputs=outputs, **common)
    scatter = reduce_scatter("r", inputs=inputs, accumulators=sums, slot="s", **kind, **common)
    reduce = all_reduce("a", buffers=outputs, chunk_align=1, **kind, **common)
    turn = [
        Idle(), Use(writes=shards), Publish(), Run(pull, "gather"), Use(reads=outputs),
        Run(pull, "gather"), Use(reads=outputs), Idle(),
        Run(push, "acquire"), Use(writes=shards), Run(push, "gather"), Use(reads=outputs),
        Run(push, "release"),
        Run(scatter, "acquire"), Use(writes=inputs), Run(scatter, "ready"), Run(scatter, "reduce"),
        Use(reads=sums),
        Idle(), Use(writes=outputs), Run(reduce, "reduce"), Use(reads=outputs),
    ]  # fmt: skip
    assert verify([*turn, *turn, *turn], single).moved.between == 0


def test_an_aliased_gather_is_proven_over_shared_memory():
    single = Topology.single(3)
    own = tuple(Region("w", rank, 8 * rank, 8) for rank in range(3))
    whole = regions("w", 3, 24)
    gather = all_gather_aliased("g", group=range(3), world=3)
    turn = [Idle(), Use(writes=own), Publish(), Run(gather, "gather"), Use(reads=whole)]
    verify(turn * 2, single, shared={"w"})
    with pytest.raises(ScheduleError, match=r"reads w\[1\]\[0:8\], which nobody has written"):
        verify(turn * 2, single)
    with pytest.raises(ScheduleError, match="both touch w"):
        verify([scene for scene in turn if not isinstance(scene, Idle)] * 2, single, shared={"w"})


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_exchange_without_two_writers(data):
    topology = Topology(data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)))
    ranks = st.integers(0, topology.world - 1)
    cells = data.draw(st.lists(st.tuples(ranks, st.integers(0, 5)), unique=True, max_size=20))
    origins = [(data.draw(ranks), data.draw(st.integers(0, 5))) for _ in cells]
    moves = [
        (Region("from", rank, 8 * at, 8), Region("to", target, 8 * place, 8))
        for (rank, at), (target, place) in zip(origins, cells, strict=True)
    ]
    schedule = exchange("x", moves=moves, topology=topology)
    sources = tuple({source: None for source, _ in moves})
    targets = tuple(target for _, target in moves)
    turn = [Use(writes=sources), Run(schedule, "exchange"), Use(reads=targets), Use(writes=targets)]
    verified = verify(turn * 3, topology)
    assert verified.moved.between == 3 * sum(
        source.nbytes
        for source, target in moves
        if topology.node_of(source.rank) != topology.node_of(target.rank)
    )


A, B = regions("m", 2, 8)
TWO = Topology(2, 1)
ONE = Topology(1, 2)


@pytest.mark.parametrize(
    ("topology", "ops", "message"),
    [
        (ONE, ((Wait(1, "c"), Signal("c", (1,))), (Wait(0, "c"), Signal("c", (0,)))),
         "deadlock: rank 0 waits for rank 1, channel 'c': expected 1, got 0; rank 1 waits for"),
        (ONE, ((Signal("c", (1,)),), ()), "rank 0 signals 'c' 1 times, and rank 1 waits for it 0"),
        (ONE, ((Pull(B, A),), ()), r"rank 0, 's' p: pull m\[1\]\[0:8\].* and rank 1, use 0 both"),
        (ONE, ((Pull(Region("n", 1, 0, 8), A),), ()), r"reads n\[1\]\[0:8\], which nobody"),
        (TWO, ((), (WaitGeneration(0), Pull(A, B))), "reads memory of another node"),
        (TWO, ((Reduce((A, B), A, torch.float32, torch.float32),), ()), "memory of another node"),
        (TWO, ((Put(A, B), Signal("c", (1,))), (Wait(0, "c"), Put(B, A), Signal("c", (0,)))),
         "both touch"),
        (ONE, ((Put(A, Region("t", 1, 0, 8)), Put(A, Region("t", 1, 0, 8))), ()), "both touch t"),
        (ONE, ((Pull(A, Region("t", 0, 0, 8)), Pull(A, Region("t", 0, 0, 8))), ()),
         "written by rank 0, .* and never read"),
    ],
)  # fmt: skip
def test_what_does_not_work_is_named(topology, ops, message):
    writes = Use(writes=(A, B))
    with pytest.raises(ScheduleError, match=message):
        verify([writes, Run(Schedule("s", 2, {"p": ops}), "p"), writes], topology)


def test_a_needless_byte_between_nodes_is_named():
    put = Schedule("s", 2, {"p": ((Put(A, B),), ())}, least_between=lambda _: 0)
    with pytest.raises(ScheduleError, match="'s' moves 8 bytes between nodes where 0 do"):
        verify(put, TWO, initial=[A])


def test_a_put_is_over_at_a_fence_for_its_rank_and_at_the_signal_for_the_receiver():
    receive = (Wait(0, "c"), Pull(B, Region("n", 1, 0, 8)))
    for ops, right in [
        ((Put(A, B), Signal("c", (1,)), Fence(A)), True),
        ((Put(A, B), Fence(A), Signal("c", (1,))), True),
        ((Put(A, B), Signal("c", (1,)), Fence(Region("n", 0, 0, 8))), False),
        ((Put(A, B), Signal("c", (1,))), False),
        ((Signal("c", (1,)), Put(A, B), Fence(A)), False),
    ]:
        scenes = [Run(Schedule("s", 2, {"p": (ops, receive)}), "p"), Use(writes=(A,))]
        if right:
            verify(scenes, TWO, initial=[A])
        else:
            with pytest.raises(ScheduleError, match=r"both touch|nobody"):
                verify(scenes, TWO, initial=[A])


def test_a_schedule_of_another_world_is_refused():
    with pytest.raises(ValueError, match="expected a topology of 2 ranks, got 1x3"):
        verify(Schedule("s", 2, {"p": ((), ())}), Topology.single(3))
