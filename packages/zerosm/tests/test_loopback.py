"""One thread plays all ranks, in any legal order, and sees when there is none."""

import pytest
import torch

from sshsdp_zerosm import (
    AbortedError,
    DeadlockError,
    Loopback,
    Pull,
    Region,
    Schedule,
    Signal,
    TransportError,
    Wait,
    all_gather_aliased,
)


def compiled(loopback, schedule):
    return [transport.compile(schedule) for transport in loopback.transports]


def test_a_circle_of_waits_is_a_deadlock_that_names_who_waits_for_what():
    ops = tuple((Wait((rank + 1) % 3, "c"), Signal("c", ((rank - 1) % 3,))) for rank in range(3))
    loopback = Loopback(3)
    programs = compiled(loopback, Schedule("circle", 3, {"p": ops}))
    message = (
        "phase 'p': no rank can go on\n"
        "rank 0 waits for rank 1, channel 'c': expected 1, got 0\n"
        "rank 1 waits for rank 2, channel 'c': expected 1, got 0\n"
        "rank 2 waits for rank 0, channel 'c': expected 1, got 0"
    )
    with pytest.raises(DeadlockError) as caught:
        loopback.run(programs, "p", seed=1)
    assert str(caught.value) == message


def test_a_gather_before_a_peer_published_is_a_deadlock():
    loopback = Loopback(2)
    programs = compiled(loopback, all_gather_aliased("g", group=(0, 1), world=2))
    loopback.transports[0].publish()
    assert not programs[0].ready("gather")
    assert programs[1].ready("gather")
    with pytest.raises(DeadlockError, match="rank 1, channel 'generation': expected 1, got 0"):
        loopback.run(programs, "gather")
    loopback.transports[1].publish()
    loopback.run(programs, "gather")
    assert [transport.generation for transport in loopback.transports] == [1, 1]


def test_seeds_reach_different_interleavings():
    """Two ranks race to read what the other writes: a schedule with a race, to see the order."""
    ops = tuple((Pull(Region("a", 1 - rank, 0, 8), Region("a", rank, 0, 8)),) for rank in (0, 1))
    seen = set()
    for seed in range(20):
        loopback = Loopback(2)
        arenas = [transport.arena("a", 8) for transport in loopback.transports]
        for rank, arena in enumerate(arenas):
            arena.tensor().fill_(rank)
        loopback.run(compiled(loopback, Schedule("race", 2, {"p": ops})), "p", seed=seed)
        seen.add(int(arenas[0].tensor()[0]))
    assert seen == {0, 1}


def test_credit_lets_the_first_waits_pass_and_ready_counts_waits_of_one_phase():
    ops = ((Wait(1, "c", credit=2), Wait(1, "c", credit=2), Wait(1, "c", credit=2)), ())
    signal = ((), (Signal("c", (0,)),))
    loopback = Loopback(2)
    programs = compiled(loopback, Schedule("s", 2, {"wait": ops, "signal": signal}))
    assert not programs[0].ready("wait")
    with pytest.raises(DeadlockError, match="expected 1, got 0"):
        loopback.run(programs, "wait")
    loopback.run(programs, "signal")
    assert programs[0].ready("wait") is False  # two waits passed already: the next need 1, 2, 3
    assert loopback.transports[1].counters.signals == 1


def test_rank_by_rank_exchange_works_and_a_missing_rank_is_a_deadlock():
    loopback = Loopback(3)
    open_ones = [
        transport.start_exchange(bytes(transport.rank)) for transport in loopback.transports
    ]
    assert [exchange.wait() for exchange in open_ones] == [[b"", b"\0", b"\0\0"]] * 3
    with pytest.raises(DeadlockError, match="rank 0 waits for rank 1, channel 'exchange'"):
        loopback.transports[0].exchange(b"")


def test_a_world_of_one_is_an_ordinary_transport():
    transport = Loopback(1).transports[0]
    assert transport.exchange(b"alone") == [b"alone"]
    transport.barrier()
    transport.idle()
    transport.publish()
    assert transport.generation == 1


def test_ranks_share_arenas_and_disagreement_is_an_error():
    first, second = Loopback(2).transports
    mine, yours = first.arena("a", 10), second.arena("a", 10)
    mine.tensor(1)[3] = 7
    assert yours.tensor()[3] == 7
    assert mine.tensor()[3] == 0
    first.arena("shared", 4, shared=True).tensor(0)[0] = 1
    assert second.arena("shared", 4, shared=True).tensor()[0] == 1
    first.arena("b", 10)
    with pytest.raises(TransportError, match="expected 10 bytes and shared=False"):
        second.arena("b", 20)
    assert mine.tensor().data_ptr() % 4096 == 0


def test_abort_reaches_the_other_ranks():
    loopback = Loopback(2)
    programs = compiled(loopback, all_gather_aliased("g", group=(0, 1), world=2))
    loopback.transports[1].publish()
    loopback.transports[0].abort("enough")
    with pytest.raises(AbortedError, match="rank 0 aborted: enough"):
        loopback.run(programs, "gather")
    with pytest.raises(AbortedError, match="rank 0 aborted: enough"):
        loopback.transports[1].exchange(b"")


def test_counters_add_up_what_was_moved():
    loopback = Loopback(2)
    for transport in loopback.transports:
        transport.arena("a", 16)
    ops = ((Pull(Region("a", 1, 0, 8), Region("a", 0, 8, 8)), Signal("c", (1,))), (Wait(0, "c"),))
    programs = compiled(loopback, Schedule("s", 2, {"gather": ops}))
    for _ in range(3):
        loopback.run(programs, "gather")
    first, second = (transport.counters for transport in loopback.transports)
    assert (first.pulled_bytes, first.signals, first.gathers) == (24, 3, 3)
    assert (second.waits, second.pulled_bytes, second.put_bytes) == (3, 0, 0)


def test_run_wants_a_program_per_rank():
    with pytest.raises(ValueError, match="expected 2 programs, one per rank, got 0"):
        Loopback(2).run([], "p")
    with pytest.raises(ValueError, match="expected world >= 1, got 0"):
        Loopback(0)


def test_a_live_tensor_survives_close():
    transport = Loopback(1).transports[0]
    tensor = transport.arena("a", 8).tensor().fill_(3)
    transport.close()
    transport.close()
    assert torch.equal(tensor, torch.full((8,), 3, dtype=torch.uint8))
    with pytest.raises(TransportError, match="expected an open transport, got a closed one"):
        transport.barrier()
