"""Every builder computes what plain torch does, in any interleaving, and on all transports."""

import itertools
import random
import time
from dataclasses import astuple, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.ranks import run_ranks

from sshsdp_zerosm import Counters, Region, all_gather_pull, by_rank, connect

ALGORITHMS = ("pull", "push", "reduce_scatter", "all_reduce")
HIERARCHICAL = (
    "hierarchical_all_gather",
    "hierarchical_reduce_scatter",
    "hierarchical_all_reduce",
    "push",
)
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def equal(got, expected):
    if expected is None:
        return got is None
    return torch.equal(got, expected)


def raw(tensor):
    return tensor.view(torch.uint8).numpy().tobytes()


@st.composite
def shapes(draw):
    """World, a group of it in any order, elements per member, scale, offset, interleaving."""
    world = draw(st.integers(1, 5))
    ranks = draw(st.permutations(range(world)))
    group = tuple(ranks[: draw(st.integers(1, world))])
    counts = draw(st.lists(st.integers(0, 9), min_size=len(group), max_size=len(group)))
    scale = draw(st.sampled_from([1.0, 0.5, 1 / 3]))
    return world, group, tuple(counts), scale, 8 * draw(st.integers(0, 2)), draw(st.integers(0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=25, deadline=None)
@given(shape=shapes())
def test_loopback_equals_plain_torch_in_any_interleaving(
    make_case, play_loopback, algorithm, dtype, shape
):
    world, group, counts, scale, offset, seed = shape
    case = make_case(algorithm, world, group, counts, dtype, scale, 3, offset)
    for rank, got in enumerate(play_loopback(case, seed)[0]):
        assert equal(got, case.expected(rank))


def grid(make_case, layout):
    """Uneven, empty and chunk-crossing sizes on all ranks; smaller groups in another order."""
    world, nodes = layout.world, layout.topology.nodes
    everyone, common = tuple(range(world)), {"nodes": nodes, "scale": 1 / 3}
    sizes = [(5,) * world, tuple(range(world)), (0,) * world, (70_001,) + (3,) * (world - 1)]
    algorithms = HIERARCHICAL if nodes > 1 else ALGORITHMS
    cases = [
        make_case(algorithm, world, everyone, counts, dtype, offset=offset, **common)
        for algorithm, (counts, offset), dtype in itertools.product(
            algorithms, zip(sizes, (0, 8, 0, 64), strict=True), DTYPES
        )
    ]
    part = everyone[::-1][: max(1, world - 1)]
    own_node = tuple(layout.topology.ranks_of(nodes - 1))[::-1]
    for group, of in ((part, algorithms), (own_node, ALGORITHMS)):
        counts = tuple(4 + index for index in range(len(group)))
        cases += [make_case(algorithm, world, group, counts, nodes=nodes) for algorithm in of]
    return cases


@pytest.mark.parametrize(
    "layout", ["1x1", "1x2", "1x3", "1x4", "2x1", "2x2", "3x2", "4x1"], indirect=True
)
def test_transports_equal_loopback_bit_for_bit_and_count_as_it_does(
    make_case, play_loopback, play, layout
):
    """All cases on one transport, under random delays."""
    cases = grid(make_case, layout)

    def rank_main(rank):
        generator = random.Random(rank.rank)

        def pause():
            if generator.random() < 0.1:
                time.sleep(generator.random() * 0.003)

        results = []
        with layout.connect(
            rank, kind="auto" if layout.world > 1 else "shared_memory"
        ) as transport:
            before = Counters()
            for index, case in enumerate(cases):
                result = play(transport, case, pause, f"{index} ")
                after = replace(transport.counters)
                counted = tuple(b - a for a, b in zip(astuple(before), astuple(after), strict=True))
                before = after
                results.append((None if result is None else raw(result), counted))
        return results

    answers = layout.run(rank_main)
    for index, case in enumerate(cases):
        expected, counters = play_loopback(case)
        for rank in range(case.world):
            assert equal(expected[rank], case.expected(rank)), case
            bits, counted = answers[rank][index]
            assert bits == (None if expected[rank] is None else raw(expected[rank])), case
            assert counted == astuple(counters[rank]), case


@pytest.mark.parametrize("layout", ["2x2", "3x2", "4x1"], indirect=True)
def test_each_byte_crosses_between_nodes_once(make_case, layout):
    """What the counters say is the lower bound of gathers and of sums of float32."""
    world, nodes, counts = layout.world, layout.topology.nodes, (1000,) * layout.world
    everyone, size = tuple(range(world)), 4
    whole = size * 1000 * world

    def rank_main(rank):
        totals = []
        with layout.connect(rank) as transport:
            for index, algorithm in enumerate(HIERARCHICAL[:-1]):
                case = make_case(algorithm, world, everyone, counts, rounds=1, nodes=nodes)
                before = transport.counters.between_bytes
                case.arenas(transport, f"{index} ")
                program = transport.compile(case.schedule(f"{index} "))
                transport.publish()
                for phase in case.phases:
                    if phase != "fill":
                        program.run(phase)
                totals.append(transport.counters.between_bytes - before)
        return totals

    gather, scatter, reduce = (sum(totals) for totals in zip(*layout.run(rank_main), strict=True))
    assert gather == whole * (nodes - 1)
    assert scatter == whole * (nodes - 1)
    assert reduce == 2 * whole * (nodes - 1)


def test_two_nodes_worth_of_groups_run_as_one_program(layout):
    """Every rank takes part in its own node's gather, under one name."""
    topology = layout.topology

    def part(rank):
        group = topology.ranks_of(topology.node_of(rank))
        return all_gather_pull(
            "node",
            shards=[Region("in", member, 0, 8) for member in group],
            outputs=[Region("out", member, 0, 8 * len(group)) for member in group],
            group=group,
            world=topology.world,
        )

    def check(transport):
        transport.arena("in", 8).tensor().fill_(transport.rank)
        output = transport.arena("out", 8 * topology.ranks_per_node).tensor()
        program = transport.compile(by_rank("all", world=topology.world, part=part))
        transport.publish()
        program.run("gather")
        transport.barrier()
        return output[::8].tolist()

    expected = [list(topology.ranks_of(topology.node_of(at))) for at in range(topology.world)]
    assert layout.run_connected(check) == expected


def test_members_of_an_aliased_gather_see_what_others_wrote_before_they_published():
    from sshsdp_zerosm import all_gather_aliased

    def rank_main(rank):
        with connect(rank.rank, rank.world, rank.store) as transport:
            memory = transport.arena("weights", 3 * 8, shared=True).tensor().view(torch.int64)
            transport.seal()
            schedule = all_gather_aliased("gather", group=range(3), world=3)
            program = transport.compile(schedule)
            for round_ in range(200):
                transport.idle()
                memory[rank.rank] = 10 * round_ + rank.rank
                transport.publish()
                program.run("gather")
                assert memory.tolist() == [10 * round_, 10 * round_ + 1, 10 * round_ + 2]
            assert transport.counters.pulled_bytes == 0
            return transport.counters.gathers, transport.generation

    assert run_ranks(rank_main, 3) == [(200, 200)] * 3


def test_a_shard_already_in_its_place_is_not_copied(make_case):
    from sshsdp_zerosm import Loopback, Region, all_gather_pull

    loopback = Loopback(2)
    outputs = [Region("out", rank, 0, 8) for rank in range(2)]
    shards = [output.part(4 * rank, 4) for rank, output in enumerate(outputs)]
    schedule = all_gather_pull("g", shards=shards, outputs=outputs, group=range(2), world=2)
    for rank, transport in enumerate(loopback.transports):
        transport.arena("out", 8).tensor()[4 * rank :][:4] = rank + 1
        transport.publish()
    loopback.run([transport.compile(schedule) for transport in loopback.transports], "gather")
    for transport in loopback.transports:
        assert transport.counters.pulled_bytes == 4
