"""Between nodes all ranks run the same programs in the same sequence; who doesn't is named."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testing.ranks import run_ranks

from sshsdp_zerosm import (
    OrderError,
    Region,
    Schedule,
    Signal,
    Wait,
    all_gather_aliased,
    all_gather_push,
    connect,
)
from sshsdp_zerosm.process_group.order import Order


def gather(transport, name):
    """A compiled gather of eight bytes per rank."""
    world = transport.world
    schedule = all_gather_push(
        name,
        shards=[Region("in", rank, 0, 8) for rank in range(world)],
        outputs=[Region("out", rank, 0, 8 * world) for rank in range(world)],
        group=range(world),
        world=world,
    )
    return transport.compile(schedule)


def first_waits(name, world, source):
    """Everyone waits for `source` before anyone says anything."""
    others = tuple(rank for rank in range(world) if rank != source)
    ops = [
        (*(Wait(rank, name) for rank in others), Signal(name, others))
        if at == source
        else (Wait(source, name), Signal(name, (source,)))
        for at in range(world)
    ]
    return Schedule(name, world, {"wait": tuple(ops)})


def deviating(layout, function, at_most=5.0):
    """The one text that all ranks get when they call ``function(transport)``, soon."""

    def check(transport):
        transport.arena("in", 8)
        transport.arena("out", 8 * transport.world)
        programs = {name: gather(transport, name) for name in ("x", "y")}
        waits = [transport.compile(first_waits(f"wait {at}", transport.world, at)) for at in (0, 1)]
        transport.barrier()
        start = time.monotonic()
        with pytest.raises(OrderError) as caught:  # noqa: PT012 (in which call is up to timing)
            function(transport, programs, waits)
            transport.barrier()
        assert time.monotonic() - start < at_most
        with pytest.raises(OrderError):
            transport.exchange(b"")
        return str(caught.value)

    answers = layout.run_connected(check)
    assert len(set(answers)) == 1, answers
    return answers[0]


@pytest.mark.parametrize("layout", ["3x1", "2x2", "3x2"], indirect=True)
def test_a_rank_that_gathers_another_group_is_named_with_it_on_all_ranks(layout):
    def run(transport, programs, _):
        for _ in range(3):
            programs["x"].run("gather")
            programs["x"].run("release")
            programs["x"].run("acquire")
        programs["y" if transport.rank == 1 else "x"].run("gather")

    text = deviating(layout, run)
    # Whoever finds out first doesn't wait until all have come to that place.
    assert re.search(r"rank [02345]: phase 'gather' of schedule 'x' \(compiled as number 1\)", text)
    assert "rank 1: phase 'gather' of schedule 'y' (compiled as number 2)" in text


@pytest.mark.parametrize("layout", ["3x1", "2x2"], indirect=True)
def test_a_rank_that_exchanges_while_the_others_gather_is_named(layout):
    def run(transport, programs, _):
        if transport.rank == 1:
            transport.exchange(b"")
        programs["x"].run("gather")

    text = deviating(layout, run)
    assert "rank 1: a collective call (exchange, arena or seal)" in text
    assert re.search("rank [023]: phase 'gather' of schedule 'x'", text)


@pytest.mark.parametrize("layout", ["2x1", "2x2"], indirect=True)
def test_ranks_that_wait_for_each_other_in_different_programs_are_named(layout):
    """Nobody sends anything, so each says where it is when nothing has come for a while."""

    def run(transport, _, waits):
        waits[transport.rank == 1].run("wait")

    text = deviating(layout, run)
    assert "rank 0: phase 'wait' of schedule 'wait 0'" in text
    assert "rank 1: phase 'wait' of schedule 'wait 1'" in text


@pytest.mark.parametrize("layout", ["3x1", "2x2"], indirect=True)
def test_a_rank_that_gathers_once_more_is_named(layout):
    def run(transport, programs, _):
        for _ in range(2 if transport.rank == 1 else 1):
            programs["x"].run("acquire")
            programs["x"].run("gather")
            programs["x"].run("release")
        programs["y"].run("acquire")
        programs["y"].run("gather")

    text = deviating(layout, run)
    assert "rank 1: phase 'acquire' of schedule 'x'" in text
    assert re.search("rank [023]: phase 'acquire' of schedule 'y'", text)


@pytest.mark.parametrize("layout", ["2x1", "2x2"], indirect=True)
def test_unordered_phases_are_run_when_a_rank_likes(layout):
    """A wait, which sends nothing, early here and late there, among phases that do."""

    def run(transport):
        world = transport.world
        others = [tuple(peer for peer in range(world) if peer != at) for at in range(world)]
        schedule = Schedule(
            "talk",
            world,
            {
                "say": [(Signal("said", others[at]),) for at in range(world)],
                "hear": [tuple(Wait(peer, "said") for peer in others[at]) for at in range(world)],
            },
            unordered=frozenset({"hear"}),
        )
        program = transport.compile(schedule)
        transport.barrier()
        early = ("say", "hear", "say", "say", "hear", "hear")
        late = ("say", "say", "say", "hear", "hear", "hear")
        for phase in early if transport.rank == 0 else late:
            program.run(phase)
        return transport.exchange(b"x")

    for answer in layout.run_connected(run):
        assert set(answer) == {b"x"}


@pytest.mark.parametrize("layout", ["2x2"], indirect=True)
def test_an_unordered_phase_that_sends_to_another_node_is_refused(layout):
    def run(transport):
        peers = {"near": (1, 0, 3, 2), "far": (2, 3, 0, 1)}
        for name, to in peers.items():
            phases = {"say": [(Signal(name, (peer,)),) for peer in to]}
            schedule = Schedule(name, 4, phases, unordered=frozenset({"say"}))
            if name == "near":
                transport.compile(schedule)
                continue
            with pytest.raises(ValueError, match="nothing sent to another node in 'say', which"):
                transport.compile(schedule)

    layout.run_connected(run)


def test_on_one_host_ranks_may_gather_in_any_order():
    def rank_main(rank):
        with connect(rank.rank, 2, rank.store, timeout=30) as transport:
            programs = [
                transport.compile(all_gather_aliased(name, group=range(2), world=2))
                for name in ("x", "y")
            ]
            transport.publish()
            for program in programs if rank.rank else reversed(programs):
                program.run("gather")
            transport.barrier()

    run_ranks(rank_main, 2)


runs = st.lists(st.sampled_from(["a", "b", "c"]), max_size=12)


@given(runs, runs, st.lists(st.booleans(), min_size=24, max_size=24))
def test_two_sequences_differ_exactly_when_neither_is_the_start_of_the_other(one, other, turns):
    """Whoever is ahead, in any interleaving, when every rank tells the other after each run."""
    orders = Order(0), Order(1)
    left = [list(one), list(other)]
    for turn in turns:
        at = int(turn) if left[int(turn)] else 1 - int(turn)
        if left[at]:
            orders[at].enter(orders[at].name(left[at].pop(0)))
            orders[1 - at].compare(*orders[at].place)
    shared = min(len(one), len(other))
    assert any(order.differs for order in orders) == (one[:shared] != other[:shared])


def test_a_rank_that_is_far_behind_finds_out_when_it_gets_there():
    ahead, behind = Order(0), Order(1)
    for _ in range(5000):
        ahead.enter(ahead.name("x"))
        behind.compare(*ahead.place)
    ahead.compare(*behind.place)
    for _ in range(4999):
        behind.enter(behind.name("x"))
    assert not behind.differs
    behind.enter(behind.name("y"))
    assert behind.differs


def test_a_rank_that_ends_without_an_answer_is_told_from_one_that_gives_it():
    order = Order(0)
    for _ in range(3):
        order.enter(order.name("x"))
    order.report()
    assert "and last: rank 0: x; rank 1: no answer." in order.explain(range(2))
    order.add_report(1, b'[[1, "x"], [2, "y"]]')
    assert "got as run number 2: rank 0: x; rank 1: y." in order.explain(range(2))
    order.add_report(1, b'[[1, "y"]]')
    assert "got as run number 1: rank 0: x; rank 1: y." in order.explain(range(2))
