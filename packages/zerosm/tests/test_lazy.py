"""One rank's part of a large world costs that part; what is combined stays lazy and checked."""

from dataclasses import replace

import pytest
import torch

from sshsdp_zerosm import (
    Loopback,
    Region,
    Schedule,
    Signal,
    Topology,
    Wait,
    all_gather_aliased,
    all_gather_pull,
    all_gather_push,
    all_reduce,
    by_rank,
    hierarchical_all_gather,
    hierarchical_all_reduce,
    hierarchical_reduce_scatter,
    merge,
    reduce_scatter,
    traffic,
)
from sshsdp_zerosm.builders.reduce_scatter import scatter_counts

WORLD, MEMBERS = 131_072, 8
LARGE = Topology(WORLD // 8, 8)
KIND = {"dtype": torch.float32, "accumulator": torch.float32}


def region(arena, nbytes):
    return lambda rank: Region(arena, rank, 0, nbytes)


def scatter(group, topology=LARGE):
    return hierarchical_reduce_scatter(
        "r", inputs=region("in", 64 * MEMBERS), accumulators=region("sum", 64), group=group,
        topology=topology, workspace=region("space", 4096), slot="s", chunk_bytes=64, **KIND,
    )  # fmt: skip


def test_a_rank_of_131072_asks_for_its_own_group_alone():
    asked = []

    def part(rank):
        asked.append(rank)
        stride = WORLD // MEMBERS
        return scatter(range(rank % stride, WORLD, stride))

    schedule = by_rank("all", world=WORLD, part=part)
    rank = 77_777
    ops = {phase: schedule.ops(phase, rank) for phase in schedule.phases}
    assert set(asked) == {0, rank}
    named = {op.target.rank for op in ops["reduce"] if hasattr(op, "target")}
    assert named == set(range(rank % (WORLD // MEMBERS), WORLD, WORLD // MEMBERS))
    assert traffic(schedule, "reduce", rank, LARGE) == (0, 64 * (MEMBERS - 1))
    assert schedule.least_between(rank) == 64 * (MEMBERS - 1)
    assert schedule.signature([rank]) == schedule.signature([rank]) != schedule.signature([0])


def all_schedules(group, topology, of):
    flat = {"group": group, "world": topology.world}
    nodes = {"group": group, "topology": topology, "chunk_bytes": 64}
    gathers = {"shards": of("a", 64), "outputs": of("b", 192)}
    sums = {"inputs": of("a", 192), "accumulators": of("b", 64), "slot": "s", **KIND}
    buffers = {"buffers": of("a", 64), "chunk_align": 1, **KIND}
    space = {"workspace": of("c", 4096)}
    return [
        all_gather_pull("n", **gathers, **flat),
        all_gather_push("n", **gathers, **flat),
        reduce_scatter("n", **sums, **flat),
        all_reduce("n", **buffers, **flat),
        hierarchical_all_gather("n", **gathers, **nodes),
        hierarchical_reduce_scatter("n", **sums, **space, **nodes),
        hierarchical_all_reduce("n", **buffers, **space, **nodes),
    ]


def test_builders_take_regions_as_functions_of_the_rank():
    """Of members only."""
    group, topology = (3, 1, 4), Topology(3, 2)

    def listed(arena, nbytes):
        return [Region(arena, rank, 0, nbytes) for rank in group]

    def on_demand(arena, nbytes):
        return lambda rank: dict(zip(group, listed(arena, nbytes), strict=True))[rank]

    pairs = zip(*(all_schedules(group, topology, of) for of in (listed, on_demand)), strict=True)
    for one, other in pairs:
        assert one.signature() == other.signature()


def test_regions_of_other_ranks_are_refused_when_they_are_used():
    schedule = all_gather_pull(
        "g", shards=lambda _: Region("a", 0, 0, 8), outputs=region("b", 16), group=(0, 1), world=2
    )
    with pytest.raises(ValueError, match=r"expected shards of rank 1, got a\[0\]"):
        schedule.ops("gather", 0)


def test_expanded_operations_are_checked():
    schedule = Schedule("s", 2, {"p": lambda rank: (Signal("c", (rank,)),)}, channels=("c",))
    with pytest.raises(ValueError, match="schedule 's', phase 'p', rank 1, signal c to 1"):
        schedule.ops("p", 1)
    schedule = Schedule("s", 2, {"p": lambda rank: (Signal("d", (1 - rank,)),)}, channels=("c",))
    with pytest.raises(ValueError, match="expected one of the stated channels c, got 'd'"):
        schedule.ops("p", 0)
    with pytest.raises(ValueError, match="expected a rank below 2, got 2"):
        schedule.ops("p", 2)


def test_channels_have_the_same_place_on_ranks_that_do_not_use_them():
    """Rank 0 is alone in its group; the places of channels must agree all the same."""

    def part(rank):
        group = (0,) if rank == 0 else (1, 2)
        others = {rank: tuple(peer for peer in group if peer != rank) for rank in group}
        name = f"only {group}"
        return Schedule(
            name,
            3,
            {"p": lambda rank: (
                *(Signal("c", (peer,)) for peer in others[rank]),
                *(Wait(peer, "c") for peer in others[rank]),
            )},
            channels=("c", "d"),
        )  # fmt: skip

    loopback = Loopback(3)
    schedules = [by_rank("s", world=3, part=part), Schedule("t", 3, {"q": ((),) * 3}, ("e",))]
    for schedule in schedules:
        programs = [transport.compile(schedule) for transport in loopback.transports]
        loopback.run(programs, next(iter(schedule.phases)))


def test_parts_that_do_not_go_together_are_refused():
    one = all_gather_aliased("one", group=(0, 1), world=2)
    other = replace(one, name="other", phases={"p": ((), ())})
    with pytest.raises(ValueError, match=r"expected parts with phases .* like 'one', got"):
        merge("m", [one, other])
    with pytest.raises(ValueError, match="at least one part"):
        merge("m", [])
    mixed = by_rank("m", world=2, part=lambda rank: (one, other)[rank])
    assert mixed.ops("gather", 0) == one.ops("gather", 0)
    with pytest.raises(ValueError, match=r"of rank 1's part as of rank 0's"):
        mixed.ops("gather", 1)
    with pytest.raises(ValueError, match="expected parts of world 3, got 2"):
        by_rank("m", world=3, part=lambda _: one)


def test_merged_gathers_wait_for_a_generation_once():
    parts = [all_gather_aliased(name, group=range(3), world=3) for name in ("a", "b")]
    assert merge("m", parts).ops("gather", 1) == parts[0].ops("gather", 1)


def test_the_lengths_of_a_reduction_are_added_once_however_many_ranks_it_has():
    class Length(int):
        added = 0

        def __radd__(self, other):
            Length.added += 1
            return int(other) + int(self)

    class Chunk:
        def numel(self, _dtype):
            return Length(3)

    whole = [Region("in", rank, 0, 4 * 3 * 50) for rank in range(50)]
    assert scatter_counts(whole, [Chunk()] * 50, torch.float32, torch.float32) == [3] * 50
    assert Length.added == 50
