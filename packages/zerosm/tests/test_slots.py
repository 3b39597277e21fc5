"""Back-to-back rounds under random delays: nobody reads too early or overwrites too soon."""

import random
import time

import pytest
import torch
from testing.ranks import run_ranks

from sshsdp_zerosm import (
    Loopback,
    Region,
    Schedule,
    Signal,
    TransportError,
    Wait,
    all_gather_push,
    connect,
    hierarchical_reduce_scatter,
)

ROUNDS = 200
NUMEL = 5000
SPACE = 40 * 4 * NUMEL


def scatter(name, slot, sums, topology):
    world = topology.world
    return hierarchical_reduce_scatter(
        name,
        inputs=[Region("in", rank, 0, 4 * NUMEL * world) for rank in range(world)],
        accumulators=[Region(sums, rank, 0, 4 * NUMEL) for rank in range(world)],
        dtype=torch.float32,
        accumulator=torch.float32,
        group=range(world),
        topology=topology,
        workspace=[Region("work", rank, 0, SPACE) for rank in range(world)],
        slot=slot,
        chunk_bytes=4 * NUMEL,
    )


def delay(generator):
    """Mostly none; sometimes long enough for the peers to run a round ahead."""
    if generator.random() < 0.1:
        time.sleep(generator.random() * 0.003)


def test_an_input_slot_is_not_overwritten_before_all_peers_have_reduced_it(layout):
    """Two schedules in turns on one slot: their credits are the slot's, not the schedule's."""
    world = layout.world

    def check(transport):
        generator = random.Random(transport.rank)
        transport.arena("work", SPACE)
        inputs = transport.arena("in", 4 * NUMEL * world).tensor().view(torch.float32)
        sums = [
            transport.arena(name, 4 * NUMEL).tensor().view(torch.float32)
            for name in ("even", "odd")
        ]
        programs = [
            transport.compile(scatter(name, "slot", name, layout.topology))
            for name in ("even", "odd")
        ]
        for round_ in range(ROUNDS):
            program = programs[round_ % 2]
            delay(generator)
            program.run("acquire")
            inputs.fill_(round_ + 1000 * transport.rank)
            delay(generator)
            program.run("ready")
            delay(generator)
            program.run("reduce")
            expected = world * round_ + 1000 * sum(range(world))
            assert sums[round_ % 2].eq(expected).all(), round_

    layout.run_connected(check)


def test_pushed_outputs_are_not_overwritten_before_they_are_consumed(layout):
    world = layout.world

    def check(transport):
        generator = random.Random(transport.rank)
        shard = transport.arena("in", 8 * NUMEL).tensor().view(torch.int64)
        output = transport.arena("out", world * 8 * NUMEL).tensor().view(torch.int64)
        schedule = all_gather_push(
            "push",
            shards=[Region("in", member, 0, 8 * NUMEL) for member in range(world)],
            outputs=[Region("out", member, 0, world * 8 * NUMEL) for member in range(world)],
            group=range(world),
            world=world,
        )
        program = transport.compile(schedule)
        for round_ in range(ROUNDS):
            program.run("acquire")
            shard.fill_(10 * round_ + transport.rank)
            delay(generator)
            program.run("gather")
            delay(generator)
            for member, part in enumerate(output.chunk(world)):
                assert part.eq(10 * round_ + member).all(), (round_, member)
            program.run("release")

    layout.run_connected(check)


@pytest.mark.parametrize("layout", ["1x2", "2x1"], indirect=True)
def test_ready_says_whether_run_would_block(layout):
    """A message may come at any time: what a far rank has not sent yet is not ready."""
    schedule = Schedule(
        "s",
        2,
        {"p": ((Wait(1, "go"), Signal("come", (1,))), (Signal("go", (0,)), Wait(0, "come")))},
    )

    def check(transport):
        program = transport.compile(schedule)
        for _ in range(3):
            transport.barrier()
            assert not program.ready("p")
            transport.barrier()
            if transport.rank == 1:
                program.run("p")
            else:
                deadline = time.monotonic() + 10
                while not program.ready("p"):
                    assert time.monotonic() < deadline
                    time.sleep(0.001)
                program.run("p")

    layout.run_connected(check)


def test_two_groups_on_one_channel_name_are_refused():
    transport = Loopback(3).transports[0]
    pairs = [
        Schedule(f"{a}{b}", 3, {"p": tuple(
            (Signal("c", (b,)), Wait(b, "c")) if rank == a
            else (Signal("c", (a,)), Wait(a, "c")) if rank == b
            else () for rank in range(3))})
        for a, b in ((0, 1), (0, 2))
    ]  # fmt: skip
    transport.compile(pairs[0])
    message = r"channel 'c' of rank 0 already signals ranks \(1,\), got \(2,\)"
    with pytest.raises(ValueError, match=message):
        transport.compile(pairs[1])


def test_ranks_that_compile_in_another_order_get_an_error_and_no_wrong_signal():
    def rank_main(rank):
        ring = {
            name: Schedule(
                name,
                2,
                {"p": tuple((Signal(name, (1 - at,)), Wait(1 - at, name)) for at in (0, 1))},
            )
            for name in ("one", "two")
        }
        with connect(rank.rank, 2, rank.store, timeout=30) as transport:
            order = ("one", "two") if rank.rank == 0 else ("two", "one")
            programs = {name: transport.compile(ring[name]) for name in order}
            with pytest.raises(TransportError, match="compile the same ones in the same order"):
                programs["one" if rank.rank == 0 else "two"].run("p")
            transport.barrier()

    run_ranks(rank_main, 2)


def test_more_channels_than_there_are_places_is_an_error():
    transport = Loopback(2).transports[0]
    many = tuple(Signal(f"c{index}", (1,)) for index in range(2048))
    transport.compile(Schedule("many", 2, {"p": (many, ())}))
    with pytest.raises(TransportError, match="at most 2048 channels, got one more"):
        transport.compile(Schedule("more", 2, {"p": ((Signal("extra", (1,)),), ())}))
