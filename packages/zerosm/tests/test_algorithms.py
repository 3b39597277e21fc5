"""Every builder computes what plain torch does, in any interleaving, and on both transports."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.ranks import run_ranks

from sshsdp_zerosm import connect

ALGORITHMS = ("pull", "push", "reduce_scatter", "all_reduce")
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
    for rank, got in enumerate(play_loopback(case, seed)):
        assert equal(got, case.expected(rank))


def grid(make_case, world):
    """Uneven, empty and chunk-crossing sizes, and a smaller group in another order."""
    sizes = [(5,) * world, tuple(range(world)), (0,) * world, (70_001,) + (3,) * (world - 1)]
    cases = [
        make_case(algorithm, world, tuple(range(world)), counts, dtype, 1 / 3)
        for algorithm, counts, dtype in itertools.product(ALGORITHMS, sizes, DTYPES)
    ]
    group = tuple(reversed(range(world)))[: max(1, world - 1)]
    counts = tuple(4 + index for index in range(len(group)))
    return cases + [make_case(algorithm, world, group, counts) for algorithm in ALGORITHMS]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_shared_memory_equals_loopback_bit_for_bit(make_case, play_loopback, play, world):
    cases = grid(make_case, world)

    def rank_main(rank):
        results = []
        for case in cases:
            with connect(rank.rank, rank.world, rank.store, kind="shared_memory") as transport:
                results.append(play(transport, case))
        return [None if result is None else raw(result) for result in results]

    answers = run_ranks(rank_main, world)
    for index, case in enumerate(cases):
        for rank, expected in enumerate(play_loopback(case)):
            assert equal(expected, case.expected(rank))
            assert answers[rank][index] == (None if expected is None else raw(expected)), case


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
