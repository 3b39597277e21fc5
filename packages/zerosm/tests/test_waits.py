"""How long ranks wait, and for whom, as transports count it."""

import time

import pytest
from testing.ranks import Rank, run_ranks

from sshsdp_zerosm import (
    Loopback,
    Schedule,
    Signal,
    Topology,
    Wait,
    WaitTimeoutError,
    connect,
)

LATE = 0.3  # seconds


def meeting(world: int) -> Schedule:
    def others(rank: int) -> tuple[int, ...]:
        return tuple(peer for peer in range(world) if peer != rank)

    phases = {"meet": lambda r: [Signal("door", others(r)), *(Wait(p, "door") for p in others(r))]}
    return Schedule("meet", world, phases, ("door",))


def on_ranks(world, scene, **options):
    def main(rank: Rank):
        with connect(rank.rank, world, rank.store, timeout=20, **options) as transport:
            return scene(rank.rank, transport)

    return run_ranks(main, world, timeout=60)


def meet_the_last(rank, transport):
    """Rank 1 comes late to a program, a barrier and an exchange; seconds waited, by key."""
    program = transport.compile(meeting(transport.world))
    for meet in (lambda: program.run("meet"), transport.barrier, lambda: transport.exchange(b"")):
        transport.barrier()
        if rank == 1:
            time.sleep(LATE)
        meet()
    waits = transport.waits
    assert waits.total == sum(waits.nanoseconds.values())
    return {key: value / 1e9 for key, value in waits.nanoseconds.items()}


@pytest.mark.parametrize(
    "options",
    [{}, {"topology": Topology(3, 1)}],
    ids=["shared memory", "messages"],
)
def test_who_comes_last_is_who_the_others_waited_for(options):
    waited = on_ranks(3, meet_the_last, **options)
    for rank in (0, 2):
        for channel in ("door", "barrier", "exchange"):
            other = 2 - rank
            assert waited[rank][channel, 1] > waited[rank].get((channel, other), 0)
    # The late one found everybody there.
    total = [sum(waits.values()) for waits in waited]
    assert total.index(min(total)) == 1


def test_a_wait_that_fails_is_counted_as_well():
    def scene(rank, transport):
        transport.barrier()
        if rank == 0:
            with pytest.raises(WaitTimeoutError):
                transport.exchange(b"")
            return transport.waits.nanoseconds["exchange", 1] / 1e9
        time.sleep(3 * LATE)
        return None

    def main(rank: Rank):
        with connect(rank.rank, 2, rank.store, timeout=LATE) as transport:
            return scene(rank.rank, transport)

    assert run_ranks(main, 2, timeout=60)[0] >= LATE


def test_nothing_is_counted_where_nobody_is_late():
    loopback = Loopback(2)
    loopback.run([transport.compile(meeting(2)) for transport in loopback.transports], "meet")
    for transport in loopback.transports:
        assert (transport.waits.total, transport.waits.nanoseconds) == (0, {})
