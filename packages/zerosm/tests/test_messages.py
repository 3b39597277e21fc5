"""Puts between nodes: in order, of any size, many at once, and never wrong without a word."""

import os
import signal
import threading
import time
from collections import deque

import pytest
import torch
from testing.ranks import run_ranks

import sshsdp_zerosm.process_group.group as group_module
from sshsdp_zerosm import (
    Fence,
    Loopback,
    Pull,
    Put,
    Reduce,
    Region,
    Schedule,
    Signal,
    Topology,
    TransportError,
    Wait,
    WaitTimeoutError,
    connect,
)
from sshsdp_zerosm.process_group.frame import INLINE_BYTES, FrameKind

SIZES = [0, 1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 100_003]


def one_way(world, ops):
    """Rank 0 does `ops` and signals everyone, who wait for it."""
    others = tuple(range(1, world))
    waits = ((Wait(0, "sent"),),) * (world - 1)
    return Schedule("s", world, {"p": ((*ops, Signal("sent", others)), *waits)})


@pytest.mark.parametrize("layout", ["2x1", "2x2"], indirect=True)
@pytest.mark.parametrize("nbytes", SIZES)
def test_a_source_may_be_overwritten_after_its_fence(layout, nbytes):
    target = layout.world - 1
    rounds = 30
    source = Region("a", 0, 8, nbytes)
    targets = [Region("b", target, 8 + at * nbytes, nbytes) for at in range(rounds)]
    schedules = [one_way(layout.world, [Put(source, to), Fence(source)]) for to in targets]

    def check(transport):
        memory = transport.arena("a", 8 + nbytes).tensor()
        got = transport.arena("b", 8 + rounds * nbytes).tensor()
        for at, program in enumerate([transport.compile(schedule) for schedule in schedules]):
            memory.fill_(at + 1)
            program.run("p")
        transport.barrier()
        if transport.rank == target:
            expected = torch.arange(1, rounds + 1, dtype=torch.uint8).repeat_interleave(nbytes)
            assert torch.equal(got[8:], expected)
            assert got[:8].eq(0).all()

    layout.run_connected(check)


@pytest.mark.parametrize("layout", ["2x1", "2x2"], indirect=True)
@pytest.mark.parametrize("nbytes", [8, 50_000])
def test_a_put_is_lost_when_many_are_under_way(layout, nbytes):
    """NVIDIA/nccl#2119: here a full queue is waited for; 300 puts back to back all arrive."""
    target, count = layout.world - 1, 300
    ops = [
        Put(Region("a", 0, at * nbytes, nbytes), Region("b", target, at * nbytes, nbytes))
        for at in reversed(range(count))
    ]

    def check(transport):
        source = transport.arena("a", count * nbytes).tensor()
        got = transport.arena("b", count * nbytes).tensor()
        values = (torch.arange(count * nbytes) % 251).to(torch.uint8)
        if transport.rank == 0:
            source.copy_(values)
        transport.compile(one_way(layout.world, ops)).run("p")
        if transport.rank == target:
            assert torch.equal(got, values)
        transport.barrier()

    layout.run_connected(check)


@pytest.mark.parametrize("kind", ["pull", "reduce"])
def test_memory_of_another_node_is_refused_by_name_where_it_would_be_read(kind):
    transport = Loopback(4, topology=Topology(2, 2)).transports[1]
    transport.arena("a", 16)
    source, target = Region("a", 2, 0, 8), Region("a", 1, 8, 8)
    op = Pull(source, target)
    if kind == "reduce":
        op = Reduce((Region("a", 0, 0, 8), source), target, torch.float32, torch.float32)
    message = r"schedule 's': rank 1 can't read a\[2\]\[0:8\].*let rank 2 put it, as the hier"
    with pytest.raises(ValueError, match=message):
        transport.compile(Schedule("s", 4, {"p": ((), (op,), (), ())}))


@pytest.mark.parametrize("layout", ["2x1", "2x2"], indirect=True)
def test_a_put_outside_an_arena_of_another_node_is_refused(layout):
    def check(transport):
        transport.arena("a", 16)
        target = Region("a", transport.world - 1, 12, 8)
        schedule = one_way(transport.world, [Put(Region("a", 0, 0, 8), target)])
        if transport.rank == 0:
            with pytest.raises(ValueError, match="a region inside the 16 bytes of arena 'a'"):
                transport.compile(schedule)

    layout.run_connected(check)


def test_a_message_that_makes_no_sense_ends_the_transport_with_a_reason():
    def rank_main(rank):
        transport = connect(rank.rank, 2, rank.store, timeout=30, kind="process_group")
        if rank.rank == 0:
            transport._network.sender(1).send(FrameKind.PUT, 7, 0, payload=torch.zeros(3).byte())
            time.sleep(0.5)
        else:
            with pytest.raises(TransportError, match="rank 1 can't apply a message: IndexError"):
                transport.barrier()
        transport.close()

    run_ranks(rank_main, 2)


def test_a_peer_that_takes_nothing_is_named_and_close_does_not_wait_for_it():
    """A stopped process keeps its connections, and the kernel's buffers end somewhere."""
    nbytes = 1 << 20
    ops = [
        Put(Region("a", 0, 0, nbytes), Region("a", 1, 0, nbytes)),
        Fence(Region("a", 0, 0, nbytes)),
    ]

    def rank_main(rank):
        transport = connect(rank.rank, 2, rank.store, timeout=3, kind="process_group")
        transport.arena("a", nbytes)
        pids = transport.exchange(str(os.getpid()).encode())
        program = transport.compile(Schedule("s", 2, {"p": (tuple(ops), ())}))
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        start = time.monotonic()
        try:
            with pytest.raises(WaitTimeoutError, match="for rank 1 on channel 'send'"):
                deque((program.run("p") for _ in range(100)), maxlen=0)
            assert time.monotonic() - start < 8
            with pytest.raises(WaitTimeoutError, match="for rank 1 on channel 'send'"):
                transport.barrier()
            transport.close()
            assert time.monotonic() - start < 16
            assert threading.active_count() == 1
        finally:
            os.kill(int(pids[1]), signal.SIGKILL)

    run_ranks(rank_main, 2, expect_death=(1,))


def test_close_ends_its_threads_although_one_peer_has_left_and_another_is_stopped():
    def rank_main(rank):
        transport = connect(rank.rank, 3, rank.store, timeout=1, kind="process_group")
        pids = transport.exchange(str(os.getpid()).encode())
        transport.barrier()
        if rank.rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        while rank.rank == 0 and not rank.store.check(["left"]):
            time.sleep(0.01)
        transport.close()
        rank.store.set("left", "")
        if rank.rank == 0:
            os.kill(int(pids[2]), signal.SIGKILL)
        return threading.active_count()

    assert run_ranks(rank_main, 3, expect_death=(2,)) == [1, 1, None]


def test_when_the_group_can_not_connect_the_reason_and_the_remedy_are_said(monkeypatch):
    def refuse(*_):
        raise RuntimeError("no route")

    monkeypatch.setattr("torch.distributed.ProcessGroupGloo", refuse)
    with pytest.raises(TransportError, match=r"no route\. If the hosts reach.*GLOO_SOCKET_IFNAME"):
        group_module.open_group(0, 1, None, 3.0)
