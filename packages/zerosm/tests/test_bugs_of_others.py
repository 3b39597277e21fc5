"""Public bugs of other systems that could exist here; each test is named by its symptom."""

import ctypes
import os
import random
import time

import pytest
import torch
from testing.ranks import run_ranks

from sshsdp_zerosm import (
    AbortedError,
    Loopback,
    Pull,
    Region,
    Schedule,
    Signal,
    TransportError,
    Wait,
    WaitTimeoutError,
    connect,
    reduce_scatter,
)
from sshsdp_zerosm.transport import Transport

PR_SET_DUMPABLE = 4


def test_neighbours_bytes_arrive_instead_of_a_view_at_an_offset():
    """NVIDIA/nccl#2198: offsets relative to a view were used against the whole allocation."""

    def rank_main(rank):
        with connect(rank.rank, 2, rank.store, timeout=30) as transport:
            memory = transport.arena("a", 4096).tensor()
            memory.copy_(torch.arange(4096) // 64 + 100 * rank.rank)
            transport.barrier()
            ops = [
                (
                    Pull(Region("a", 1 - at, 640, 64), Region("a", at, 1984, 64)),
                    Pull(Region("a", 1 - at, 1281, 63), Region("a", at, 3007, 63)),
                )
                for at in (0, 1)
            ]
            transport.compile(Schedule("s", 2, {"p": tuple(ops)})).run("p")
            other = 100 * (1 - rank.rank)
            assert memory[1984:2048].eq(10 + other).all()
            assert memory[3007:3070].eq(20 + other).all()
            untouched = torch.arange(4096) // 64 + 100 * rank.rank
            assert memory[1983] == untouched[1983]
            assert memory[2048:3007].eq(untouched[2048:3007]).all()
            transport.barrier()

    run_ranks(rank_main, 2)


def test_the_first_operation_hangs_while_a_peer_has_not_mapped_yet(monkeypatch):
    """NVIDIA/nccl#2290: setup did not end with all ranks having mapped everything."""

    def rank_main(rank):
        if rank.rank == 1:
            import sshsdp_zerosm.shared_memory.handover as handover

            original = handover.map_memory

            def slow(*arguments):
                time.sleep(0.2)
                return original(*arguments)

            monkeypatch.setattr(handover, "map_memory", slow)
        with connect(rank.rank, 2, rank.store, timeout=30) as transport:
            arena = transport.arena("a", 8)
            arena.tensor(1 - rank.rank).fill_(1)
            transport.barrier()
            assert arena.tensor().eq(1).all()

    run_ranks(rank_main, 2)


def test_signals_of_two_calls_ago_are_accepted():
    """NVIDIA/nccl#2306: flags without a generation let ranks lap each other."""

    def rank_main(rank):
        with connect(rank.rank, 2, rank.store, timeout=30) as transport:
            memory = transport.arena("a", 4).tensor().view(torch.int32)
            other = transport.arena("b", 4).tensor().view(torch.int32)
            meet = tuple((Signal("met", (1 - at,)), Wait(1 - at, "met")) for at in (0, 1))
            pull = tuple((Pull(Region("a", 1 - at, 0, 4), Region("b", at, 0, 4)),) for at in (0, 1))
            program = transport.compile(Schedule("s", 2, {"meet": meet, "pull": pull}))
            generator = random.Random(rank.rank)
            for round_ in range(300):
                memory.fill_(round_)
                if rank.rank == 1 and generator.random() < 0.1:
                    time.sleep(0.002)
                program.run("meet")
                program.run("pull")
                assert int(other[0]) == round_
                program.run("meet")

    run_ranks(rank_main, 2)


def test_an_extra_allocation_on_one_rank_pairs_different_buffers():
    """pytorch#190977: buffers were paired by address order, which can differ per rank."""

    def rank_main(rank):
        with connect(rank.rank, 2, rank.store, timeout=30) as transport:
            if rank.rank == 1:
                torch.empty(1 << 20)
            names = ["extra", "a"] if rank.rank == 1 else ["a", "extra"]
            with pytest.raises(TransportError, match="rank 0: 'a' of 64 bytes, rank 1: 'extra'"):
                transport.arena(names[0], 64)

    run_ranks(rank_main, 2)


def test_the_first_call_after_connecting_fails_when_it_makes_an_arena():
    """pytorch#188567: registration needed an earlier collective."""

    def rank_main(rank):
        with connect(rank.rank, 2, rank.store, timeout=30) as transport:
            return transport.arena("a", 8).tensor().numel()

    assert run_ranks(rank_main, 2) == [8, 8]


def test_signals_of_one_group_satisfy_waits_of_another():
    """pytorch#192581: signal slots were indexed by the rank inside the group."""

    def rank_main(rank):
        def pair(a, b):
            ops = {a: (Signal(f"{a}{b}", (b,)), Wait(b, f"{a}{b}"))}
            ops[b] = (Signal(f"{a}{b}", (a,)), Wait(a, f"{a}{b}"))
            return Schedule(f"{a}{b}", 3, {"p": tuple(ops.get(at, ()) for at in range(3))})

        with connect(rank.rank, 3, rank.store, timeout=0.4) as transport:
            first, second = transport.compile(pair(0, 1)), transport.compile(pair(0, 2))
            transport.barrier()
            first.run("p")
            if rank.rank == 2:
                with pytest.raises(WaitTimeoutError, match="rank 0 on channel '02'"):
                    second.run("p")
            else:
                time.sleep(0.8)

    run_ranks(rank_main, 3)


def test_a_backend_silently_does_nothing():
    """pytorch#191858: a backend's barrier, put and wait were empty."""

    class Partial(Transport):
        def _seal(self):
            pass

    with pytest.raises(TypeError, match="abstract"):
        Partial(0, 1, 1.0, [], None)


def test_abort_with_live_arenas_and_a_pending_wait_crashes():
    """pytorch#181610: abort deregistered windows by the wrong call."""

    def rank_main(rank):
        transport = connect(rank.rank, 2, rank.store, timeout=30)
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

    run_ranks(rank_main, 2)


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


@pytest.mark.parametrize("numel", [1023, 1 << 20, (1 << 20) + 24])
def test_the_tail_of_a_reduce_scatter_is_wrong_at_some_sizes(numel):
    """jax#40830: a wrong tail from 4 MiB on; comparing first elements does not notice."""

    def rank_main(rank):
        counts = (numel - numel // 3, numel // 3)
        with connect(rank.rank, 2, rank.store, timeout=60) as transport:
            inputs = transport.arena("in", 4 * numel).tensor().view(torch.float32)
            sums = transport.arena("sum", 4 * counts[0]).tensor().view(torch.float32)
            schedule = reduce_scatter(
                "r",
                inputs=[Region("in", at, 0, 4 * numel) for at in (0, 1)],
                accumulators=[Region("sum", at, 0, 4 * counts[at]) for at in (0, 1)],
                dtype=torch.float32,
                accumulator=torch.float32,
                group=(0, 1),
                world=2,
                slot="s",
            )
            program = transport.compile(schedule)
            generator = torch.Generator().manual_seed(1)
            values = torch.randint(0, 1 << 20, (2, numel), generator=generator).float()
            program.run("acquire")
            inputs.copy_(values[rank.rank])
            program.run("ready")
            program.run("reduce")
            start = 0 if rank.rank == 0 else counts[0]
            expected = values.sum(0)[start : start + counts[rank.rank]]
            assert torch.equal(sums[: counts[rank.rank]], expected)

    run_ranks(rank_main, 2)


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
