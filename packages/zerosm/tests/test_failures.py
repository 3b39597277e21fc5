"""A rank that dies, is late, aborts or leaves gives the others one named error, soon."""

import os
import signal
import time

import pytest
from testing.ranks import run_ranks

from sshsdp_zerosm import (
    AbortedError,
    PeerClosedError,
    PeerDiedError,
    Schedule,
    Signal,
    Topology,
    TransportError,
    Wait,
    WaitTimeoutError,
    all_gather_aliased,
    connect,
)
from sshsdp_zerosm.board import ABORTED


def everyone_waits_for(source, world):
    """Phase "wait": all other ranks wait for a signal of `source`."""
    others = tuple(rank for rank in range(world) if rank != source)
    ops = tuple(
        (Signal("late", others),) if rank == source else (Wait(source, "late"),)
        for rank in range(world)
    )
    return Schedule("s", world, {"wait": ops})


@pytest.mark.parametrize("call", ["run", "barrier", "exchange", "gather"])
def test_a_killed_peer_is_named_on_all_others_within_a_second(layout, call):
    world = layout.world

    def rank_main(rank):
        transport = layout.connect(rank, timeout=60)
        program = transport.compile(everyone_waits_for(1, world))
        gather = transport.compile(all_gather_aliased("g", group=range(world), world=world))
        transport.barrier()
        if rank.rank == 1:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        calls = {
            "run": lambda: program.run("wait"),
            "barrier": transport.barrier,
            "exchange": lambda: transport.exchange(b""),
            "gather": lambda: (transport.publish(), gather.run("gather")),
        }
        start = time.monotonic()
        with pytest.raises(PeerDiedError, match="rank 1 died"):
            calls[call]()
        seconds = time.monotonic() - start
        with pytest.raises(PeerDiedError, match="rank 1 died"):
            transport.exchange(b"")
        # The failure is for good, and close() works in it.
        transport.close()
        return seconds

    answers = layout.run(rank_main, expect_death=(1,))
    assert max(answers[:1] + answers[2:]) < 1.5


def test_a_peer_that_dies_while_another_is_waited_for_is_named(layout):
    """Rank 0 waits for rank 2, and rank 1 dies."""

    def rank_main(rank):
        transport = layout.connect(rank, timeout=60)
        program = transport.compile(everyone_waits_for(2, layout.world))
        transport.barrier()
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank.rank == 2:
            time.sleep(1.0)
            return
        with pytest.raises(PeerDiedError, match="rank 1 died"):
            program.run("wait")

    layout.run(rank_main, expect_death=(1,))


@pytest.mark.parametrize("layout", ["1x2", "2x1", "2x2"], indirect=True)
def test_ranks_that_wait_for_each_other_are_named_with_their_calls(layout):
    """Rank 0 and the last one wait in a circle, the others for rank 0; nobody is called late."""
    last = layout.world - 1
    ops = [(Wait(0, "c"),)] * layout.world
    ops[0] = (Wait(last, "a"), Signal("b", (last,)), Signal("c", tuple(range(1, last))))
    ops[last] = (Wait(0, "b"), Signal("a", (0,)))

    def rank_main(rank):
        with layout.connect(rank, timeout=2.0 if rank.rank == last else 60.0) as transport:
            program = transport.compile(Schedule("s", layout.world, {"wait": tuple(ops)}))
            transport.barrier()
            with pytest.raises(TransportError) as caught:
                program.run("wait")
            return str(caught.value)

    *others, text = layout.run(rank_main)
    assert "late" not in text
    assert text.endswith(
        "got 0. Ranks wait for each other in different calls (rank 0 on channel 'a', rank "
        f"{last} on channel 'b'): make the same calls in the same order on all ranks, or see why "
        "one of these stands still"
    )
    assert set(others) == {f"rank {last} aborted: WaitTimeoutError: {text}"}


@pytest.mark.parametrize("layout", ["1x2", "2x1"], indirect=True)
def test_a_late_peer_is_named_with_channel_and_counts(layout):
    def rank_main(rank):
        transport = layout.connect(rank, timeout=2.0)
        program = transport.compile(everyone_waits_for(1, 2))
        if rank.rank == 1:
            program.run("wait")
            time.sleep(3.0)
            return None
        program.run("wait")
        start = time.monotonic()
        with pytest.raises(WaitTimeoutError, match="Rank 1 is alive but late") as caught:
            program.run("wait")
        assert 2.0 <= time.monotonic() - start < 2.9
        error = caught.value
        return str(error), error.peer, error.channel, error.expected, error.seen

    text, *details = layout.run(rank_main)[0]
    assert details == [1, "late", 2, 1]
    assert text.startswith(
        "rank 0 waited 2 s for rank 1 on channel 'late': expected a count of 2, got 1."
    )


def test_a_late_rank_is_named_also_by_whoever_waits_for_a_rank_that_waits_for_it(layout):
    """The last rank waits for rank 0, which waits for rank 1; the first to give up tells all."""
    world = layout.world
    between = tuple(rank for rank in range(world - 1) if rank != 1)
    ops = [(Wait(1, "late"),)] * world
    ops[0] += (Signal("after", (world - 1,)),)
    ops[1] = (Signal("late", between),)
    ops[-1] = (Wait(0, "after"),)

    def rank_main(rank):
        last = rank.rank == world - 1
        with layout.connect(rank, timeout=2.0 if last else 60.0) as transport:
            program = transport.compile(Schedule("s", world, {"wait": tuple(ops)}))
            transport.barrier()
            if rank.rank == 1:
                while not transport._own.words[ABORTED] and rank.store.add("told", 0) < world - 1:
                    time.sleep(0.01)  # at something else
            try:
                program.run("wait")
                transport.barrier()
            except TransportError as error:
                rank.store.add("told", 1)
                return type(error).__name__, str(error)

    *others, last = layout.run(rank_main)
    assert last[0] == "WaitTimeoutError"
    assert "for rank 0 on channel 'after'" in last[1]
    assert "Rank 0 waits for rank 1 itself. Rank 1 is alive but late" in last[1]
    assert set(others) == {
        ("AbortedError", f"rank {world - 1} aborted: WaitTimeoutError: {last[1]}")
    }


def test_abort_wakes_everyone_and_is_for_good(layout):
    def rank_main(rank):
        transport = layout.connect(rank, timeout=60)
        program = transport.compile(everyone_waits_for(0, layout.world))
        start = time.monotonic()
        if rank.rank == 0:
            time.sleep(0.2)
            transport.abort("loss is nan")
        with pytest.raises(AbortedError, match="rank 0 aborted: loss is nan"):
            program.run("wait")
        assert time.monotonic() - start < 1.5
        with pytest.raises(AbortedError, match="rank 0 aborted: loss is nan"):
            transport.barrier()
        transport.close()

    layout.run(rank_main)


def test_an_exception_inside_the_context_aborts_with_its_text(layout):
    def rank_main(rank):
        try:
            with layout.connect(rank, timeout=60) as transport:
                if rank.rank == 1:
                    raise KeyError("no such layer")
                transport.exchange(b"")
        except (KeyError, TransportError) as error:
            return type(error).__name__, str(error)

    first, second, *rest = layout.run(rank_main)
    assert {first, *rest} == {("AbortedError", "rank 1 aborted: KeyError: 'no such layer'")}
    assert second[0] == "KeyError"


def test_a_peer_that_closed_is_not_dead_but_can_not_be_waited_for(layout):
    world = layout.world

    def rank_main(rank):
        transport = layout.connect(rank, timeout=60)
        program = transport.compile(everyone_waits_for(1, world))
        rest = transport.compile(everyone_waits_for(2, world))
        if rank.rank == 1:
            program.run("wait")
            transport.close()
            return
        time.sleep(0.5)  # by now rank 1's process has ended
        program.run("wait")  # it signalled before it left
        if rank.rank == 2:
            time.sleep(0.2)
        rest.run("wait")
        if rank.rank != 2:  # rank 2 was there, and that rank 1 wasn't didn't matter
            with pytest.raises(PeerClosedError, match="rank 1, which has closed its transport"):
                program.run("wait")
        transport.close()

    layout.run(rank_main)


def test_ranks_may_close_at_different_times_and_nobody_waits_for_the_late_ones(layout):
    def rank_main(rank):
        transport = layout.connect(rank, timeout=60)
        transport.barrier()
        time.sleep(0.4 * rank.rank)
        start = time.monotonic()
        transport.close()
        return time.monotonic() - start

    assert max(layout.run(rank_main)) < 0.35


def test_long_reasons_and_any_letters_survive_the_control_page(layout):
    def rank_main(rank):
        transport = layout.connect(rank, timeout=60)
        transport.exchange(b"")
        if rank.rank == 0:
            time.sleep(0.1)
            transport.abort("ü" * 1000)
            time.sleep(0.3)
            return
        with pytest.raises(AbortedError, match=r"aborted: ü{252}$"):
            transport.barrier()

    layout.run(rank_main)


def test_an_interrupt_ends_a_wait_at_once(layout):
    def rank_main(rank):
        transport = layout.connect(rank, timeout=60)
        transport.barrier()
        if rank.rank == 0:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            start = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                transport.barrier()
            assert time.monotonic() - start < 1.0
        else:
            time.sleep(0.5)
        transport.close()

    layout.run(rank_main)


def turns(rank, cores, monkeypatch):
    """Seconds for 500 barriers of ranks on so many cores, and how often this rank yielded."""
    yields = []
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    monkeypatch.setattr(os, "sched_yield", lambda: yields.append(1))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    with connect(rank.rank, rank.world, rank.store, timeout=60) as transport:
        start = time.monotonic()
        for _ in range(500):
            time.sleep(0.0005 * (rank.rank == 0))  # the others have to wait
            transport.barrier()
        return time.monotonic() - start, len(yields)


def test_more_ranks_than_cores_take_turns_promptly(monkeypatch):
    """They sleep at once, since a spinning rank keeps the one it waits for from running."""
    answers = run_ranks(turns, 4, 2, monkeypatch)
    assert max(seconds for seconds, _ in answers) < 5.0
    assert sum(yields for _, yields in answers) == 0


def test_six_ranks_of_three_nodes_on_two_cores_take_turns_promptly():
    """Every message wakes a thread besides the ranks."""
    layout = Topology(3, 2)

    def rank_main(rank):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
        with connect(rank.rank, 6, rank.store, timeout=60, topology=layout) as transport:
            start = time.monotonic()
            for _ in range(100):
                transport.barrier()
            return time.monotonic() - start

    assert max(run_ranks(rank_main, 6)) < 10.0


def test_ranks_with_cores_to_themselves_look_again_before_they_sleep(monkeypatch):
    assert sum(yields for _, yields in run_ranks(turns, 2, 2, monkeypatch)) > 0
