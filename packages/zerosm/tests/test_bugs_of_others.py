"""Public bugs of other systems that could exist here; each test is named by its symptom."""

import ctypes
import os
import random
import time

import pytest
import torch
from testing.ranks import run_ranks

import sshsdp_zerosm.process_group.transport as process_group
import sshsdp_zerosm.shared_memory.handover as handover
from sshsdp_zerosm import (
    AbortedError,
    Fence,
    Loopback,
    Put,
    Region,
    Schedule,
    Signal,
    TransportError,
    Wait,
    connect,
    hierarchical_reduce_scatter,
    reduce_scatter,
    reduce_scatter_workspace,
)
from sshsdp_zerosm.transport import Transport

PR_SET_DUMPABLE = 4


def test_neighbours_bytes_arrive_instead_of_a_view_at_an_offset(layout):
    """NVIDIA/nccl#2198: offsets relative to a view were used against the whole allocation."""
    world = layout.world

    def ring(at):
        to = (at + 1) % world
        return (
            Put(Region("a", at, 640, 64), Region("a", to, 1984, 64)),
            Put(Region("a", at, 1281, 663), Region("a", to, 2307, 663)),
            Signal("put", (to,)),
            Wait((at - 1) % world, "put"),
        )

    schedule = Schedule("s", world, {"p": tuple(map(ring, range(world)))})

    def check(transport):
        def values(rank):
            return (torch.arange(4096) // 64 + 50 * rank).to(torch.uint8)

        transport.arena("before", 1)
        memory = transport.arena("a", 4096).tensor()
        memory.copy_(values(transport.rank))
        program = transport.compile(schedule)
        transport.barrier()
        program.run("p")
        expected, other = values(transport.rank), values((transport.rank - 1) % world)
        expected[1984:2048] = other[640:704]
        expected[2307:2970] = other[1281:1944]
        assert torch.equal(memory, expected)
        transport.barrier()

    layout.run_connected(check)


@pytest.mark.parametrize("layout", ["1x2", "2x1", "2x2"], indirect=True)
def test_the_first_operation_hangs_while_a_peer_has_not_mapped_yet(layout, monkeypatch):
    """NVIDIA/nccl#2290: setup did not end with all ranks having mapped everything."""
    world = layout.world
    ops = [(Put(Region("a", at, 0, 8), Region("a", world - 1 - at, 8, 8)),) for at in range(world)]

    def rank_main(rank):
        if rank.rank == world - 1:
            for where, name in ((handover, "map_memory"), (process_group, "local_memory")):
                original = getattr(where, name)

                def slow(*arguments, original=original):
                    time.sleep(0.2)
                    return original(*arguments)

                monkeypatch.setattr(where, name, slow)
        with layout.connect(rank) as transport:
            memory = transport.arena("a", 16).tensor()
            memory[:8].fill_(1)
            transport.compile(Schedule("s", world, {"p": tuple(ops)})).run("p")
            transport.barrier()
            assert memory.eq(1).all()
            transport.barrier()

    layout.run(rank_main)


def test_signals_of_two_calls_ago_are_accepted(layout):
    """NVIDIA/nccl#2306, #2375: flags without a generation let ranks lap each other.

    A thousand calls back to back, of one size; the first and the last word say the round.
    """
    world, last = layout.world, layout.world - 1
    numel = 500

    def ring(at):
        to = (at + 1) % world
        return Put(Region("a", at, 0, 8 * numel), Region("b", to, 0, 8 * numel))

    def meet(at, channel):
        others = tuple(peer for peer in range(world) if peer != at)
        return (Signal(channel, others), *(Wait(peer, channel) for peer in others))

    phases = {
        "put": [(ring(at), *meet(at, "put"), Fence(Region("a", at, 0, 8))) for at in range(world)],
        "read": [meet(at, "read") for at in range(world)],
    }
    schedule = Schedule("s", world, {name: tuple(ops) for name, ops in phases.items()})

    def check(transport):
        mine = transport.arena("a", 8 * numel).tensor().view(torch.int64)
        other = transport.arena("b", 8 * numel).tensor().view(torch.int64)
        program = transport.compile(schedule)
        generator = random.Random(transport.rank)
        for round_ in range(1000):
            mine[0] = mine[-1] = round_
            if transport.rank == last and generator.random() < 0.02:
                time.sleep(0.002)
            program.run("put")
            assert (int(other[0]), int(other[-1])) == (round_, round_)
            program.run("read")

    layout.run_connected(check)


def test_an_extra_allocation_on_one_rank_pairs_different_buffers(layout):
    """pytorch#190977: buffers were paired by address order, which can differ per rank."""

    def check(transport):
        if transport.rank == 1:
            torch.empty(1 << 20)
        names = ["extra", "a"] if transport.rank == 1 else ["a", "extra"]
        with pytest.raises(TransportError, match="rank 0: 'a' of 64 bytes, rank 1: 'extra'"):
            transport.arena(names[0], 64)

    layout.run_connected(check)


def test_the_first_call_after_connecting_fails_when_it_makes_an_arena(layout):
    """pytorch#188567: registration needed an earlier collective."""
    sizes = layout.run_connected(lambda transport: transport.arena("a", 8).tensor().numel())
    assert sizes == [8] * layout.world


def test_signals_of_one_group_satisfy_waits_of_another(layout):
    """pytorch#192581: signal slots were indexed by the rank inside the group."""
    world = layout.world

    def pair(a, b):
        ops = {a: (Signal(f"{a}{b}", (b,)), Wait(b, f"{a}{b}"))}
        ops[b] = (Signal(f"{a}{b}", (a,)), Wait(a, f"{a}{b}"))
        return Schedule(f"{a}{b}", world, {"p": tuple(ops.get(at, ()) for at in range(world))})

    def check(transport):
        first, second = transport.compile(pair(0, 1)), transport.compile(pair(0, 2))
        transport.barrier()
        first.run("p")
        transport.barrier()
        assert transport.rank not in (0, 2) or not second.ready("p")
        transport.barrier()
        second.run("p")
        transport.barrier()
        assert transport.rank not in (0, 1) or not first.ready("p")

    layout.run_connected(check)


def test_a_backend_silently_does_nothing():
    """pytorch#191858: a backend's barrier, put and wait were empty."""

    class Partial(Transport):
        def _seal(self):
            pass

    with pytest.raises(TypeError, match="abstract"):
        Partial(0, 1, 1.0, [], None)


def test_abort_with_live_arenas_and_a_pending_wait_crashes(layout):
    """pytorch#181610: abort deregistered windows by the wrong call."""

    def rank_main(rank):
        transport = layout.connect(rank)
        tensor = transport.arena("a", 8192).tensor().fill_(5)
        transport.arena("b", 8192, shared=True)
        transport.barrier()
        if rank.rank == 0:
            time.sleep(0.1)
            transport.abort("stop")
        with pytest.raises(AbortedError):
            transport.barrier()
        transport.close()
        assert tensor.eq(5).all()

    layout.run(rank_main)


def test_hand_over_needs_rights_that_containers_do_not_give():
    """pytorch#129408, #165685: fetching a peer's descriptors needs ptrace rights."""

    def rank_main(rank):
        assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
        with connect(rank.rank, 2, rank.store, timeout=30) as transport:
            arena = transport.arena("a", 8)
            arena.tensor(1 - rank.rank).fill_(1)
            transport.barrier()
            return int(arena.tensor().sum())

    assert run_ranks(rank_main, 2) == [8, 8]


def test_the_exit_of_one_rank_takes_memory_from_the_others():
    """python/cpython#82300: whoever attached removed the segment when it ended."""

    def rank_main(rank):
        transport = connect(rank.rank, 2, rank.store, timeout=30)
        arena = transport.arena("a", 1 << 16)
        arena.tensor().fill_(rank.rank + 1)
        transport.barrier()
        if rank.rank == 1:
            transport.close()
            return None
        time.sleep(0.5)
        kept = int(arena.tensor(1).sum()), int(arena.tensor().sum())
        transport.close()
        return kept

    assert run_ranks(rank_main, 2)[0] == (2 << 16, 1 << 16)


def test_nothing_is_left_in_shared_folders():
    """Named segments stay after SIGKILL; these have no name."""

    def rank_main(rank):
        transport = connect(rank.rank, 2, rank.store, timeout=30)
        transport.arena("a", 1 << 16)
        if rank.rank == 1:
            os.kill(os.getpid(), 9)
        transport.close()

    run_ranks(rank_main, 2, expect_death=(1,))
    assert not any("sshsdp" in name for name in os.listdir("/dev/shm"))


@pytest.mark.parametrize("layout", ["1x2", "2x1"], indirect=True)
@pytest.mark.parametrize("numel", [1023, 1 << 20, (1 << 20) + 24])
def test_the_tail_of_a_reduce_scatter_is_wrong_at_some_sizes(layout, numel):
    """jax#40830: a wrong tail from 4 MiB on; comparing first elements does not notice."""
    counts = (numel - numel // 3, numel // 3)
    common = {"group": (0, 1), "topology": layout.topology, "chunk_bytes": 1 << 20}
    space = reduce_scatter_workspace(counts=counts, accumulator=torch.float32, **common)
    schedule = hierarchical_reduce_scatter(
        "r",
        inputs=[Region("in", at, 0, 4 * numel) for at in (0, 1)],
        accumulators=[Region("sum", at, 0, 4 * counts[at]) for at in (0, 1)],
        dtype=torch.float32,
        accumulator=torch.float32,
        workspace=[Region("work", at, 0, space) for at in (0, 1)],
        slot="s",
        **common,
    )

    def check(transport):
        inputs = transport.arena("in", 4 * numel).tensor().view(torch.float32)
        sums = transport.arena("sum", 4 * counts[0]).tensor().view(torch.float32)
        transport.arena("work", space)
        program = transport.compile(schedule)
        generator = torch.Generator().manual_seed(1)
        values = torch.randint(0, 1 << 20, (2, numel), generator=generator).float()
        program.run("acquire")
        inputs.copy_(values[transport.rank])
        program.run("ready")
        program.run("reduce")
        start = 0 if transport.rank == 0 else counts[0]
        expected = values.sum(0)[start : start + counts[transport.rank]]
        assert torch.equal(sums[: counts[transport.rank]], expected)

    layout.run_connected(check)


def test_a_requested_wide_accumulator_silently_becomes_bfloat16():
    """NVIDIA/Megatron-LM#6535; gloo sums bfloat16 in bfloat16: 256 + 1 is 256."""
    loopback = Loopback(2)
    for transport, value in zip(loopback.transports, (256.0, 1.0), strict=True):
        transport.arena("in", 4).tensor().view(torch.bfloat16).fill_(value)
        transport.arena("sum", 4)
    common = {
        "inputs": [Region("in", at, 0, 4) for at in (0, 1)],
        "accumulators": [Region("sum", at, 0, 4) for at in (0, 1)],
        "dtype": torch.bfloat16,
        "group": (0, 1),
        "world": 2,
        "slot": "s",
    }
    schedule = reduce_scatter("r", accumulator=torch.float32, **common)
    programs = [transport.compile(schedule) for transport in loopback.transports]
    for phase in schedule.phases:
        loopback.run(programs, phase)
    for transport in loopback.transports:
        assert transport._arenas["sum"].tensor().view(torch.float32).tolist() == [257.0]
    with pytest.raises(ValueError, match="accumulator of float32, float64"):
        reduce_scatter("r", accumulator=torch.bfloat16, **common)
