"""The exchanges that this package ships keep to the protocol."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from testing.fragment_exchange import ExchangeConformance
from testing.ranks import run_ranks

from sshsdp_updates import InProcessWorld, LocalExchange, Message, ProcessGroupExchange


class TestInProcess(ExchangeConformance):
    @pytest.fixture
    def run(self):
        def run(world, function):
            with ThreadPoolExecutor(world) as pool:
                return list(pool.map(function, InProcessWorld(world).ranks()))

        return run


def with_gloo(rank, function):
    dist.init_process_group(
        "gloo",
        store=rank.store,
        rank=rank.rank,
        world_size=rank.world,
        timeout=timedelta(seconds=60),
    )
    try:
        return function(ProcessGroupExchange())
    finally:
        dist.destroy_process_group()


class TestProcessGroup(ExchangeConformance):
    @pytest.fixture
    def run(self):
        return lambda world, function: run_ranks(with_gloo, world, function)


def test_a_world_of_one_rank_sends_nothing():
    exchange = LocalExchange()
    exchange.start(exchange.compile([]))
    assert exchange.reserve(24).shape == (24,)
    with pytest.raises(ValueError, match="between rank 0 and another one of 1"):
        exchange.compile([Message(0, 0, 0, 8, 8)])


def test_each_pair_of_ranks_has_one_message():
    def count(rank):
        def lines(exchange):
            exchange.reserve(64)
            messages = [Message(0, 8 * i, 1, 8 * i, 4) for i in range(5)]
            program = exchange.compile(messages)
            return len(program.outgoing), len(program.incoming)

        return with_gloo(rank, lines)

    assert run_ranks(count, 2) == [(1, 0), (0, 1)]


def test_a_rank_that_fails_wakes_the_others():
    world = InProcessWorld(2, timeout=20)
    first, second = world.ranks()

    def fail(exchange):
        if exchange is second:
            world.abort()
            return "aborted"
        with pytest.raises(threading.BrokenBarrierError):
            exchange.all_reduce(torch.zeros(1), "sum")
        return "woken"

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(fail, (first, second))) == ["woken", "aborted"]
