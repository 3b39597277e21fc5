"""Times by the model of links, and bytes that are the formulas'."""

import pytest
import torch

from sshsdp_zerosm import (
    DeadlockError,
    Fence,
    Pull,
    Put,
    Rates,
    Reduce,
    Region,
    Schedule,
    Signal,
    Topology,
    Wait,
    simulate,
    traffic,
)

from .stories import Story, changed

RATES = Rates(within=1000.0, between=100.0, reduce=500.0, within_latency=0.01, between_latency=0.5)
A = [Region("a", rank, 0, 100) for rank in range(4)]
B = [Region("b", rank, 0, 100) for rank in range(4)]


def seconds(topology, *ops):
    schedule = Schedule("s", topology.world, {"p": tuple(ops)})
    return simulate(schedule, topology, RATES).seconds


def test_an_operation_takes_its_latency_and_its_bytes():
    one = Topology(1, 2)
    assert seconds(one, (Pull(A[1], B[0]),), ()) == pytest.approx((0.11, 0.0))
    assert seconds(one, (Pull(A[0], B[0]),), ()) == pytest.approx((0.1, 0.0))
    sum_ = Reduce((A[0], A[1]), B[0], torch.float32, torch.float32)
    assert seconds(one, (sum_,), ()) == pytest.approx((0.4, 0.0))
    assert seconds(one, (Signal("c", (1,)),), (Wait(0, "c"),)) == pytest.approx((0.0, 0.01))


def test_a_put_between_nodes_is_under_way_until_a_fence_or_its_signal():
    two = Topology(2, 1)
    put = Put(A[0], B[1])
    assert seconds(two, (put,), ()) == pytest.approx((0.0, 0.0))
    assert seconds(two, (put, Fence(A[0])), ()) == pytest.approx((1.0, 0.0))
    sent = (put, Signal("c", (1,)))
    assert seconds(two, sent, (Wait(0, "c"),)) == pytest.approx((0.0, 1.5))


def test_a_link_serves_one_transfer_at_a_time():
    four = Topology(4, 1)
    mobbed = seconds(four, (), *[(Put(A[rank], B[0]), Fence(A[rank])) for rank in (1, 2, 3)])
    assert sorted(mobbed) == pytest.approx([0.0, 1.0, 2.0, 3.0])
    rotated = [(Put(A[rank], B[(rank + 1) % 4]), Fence(A[rank])) for rank in range(4)]
    assert seconds(four, *rotated) == pytest.approx([1.0] * 4)


def test_a_wait_for_nothing_is_a_deadlock():
    with pytest.raises(DeadlockError, match="rank 1: wait c of 0"):
        seconds(Topology(1, 2), (), (Wait(0, "c"),))
    with pytest.raises(ValueError, match="expected rates > 0"):
        Rates(0.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="latencies >= 0"):
        Rates(1.0, 1.0, 1.0, -1.0)


@pytest.mark.parametrize(("nodes", "ranks"), [(2, 2), (4, 2), (3, 4)])
def test_bytes_per_rank_are_those_of_the_hierarchical_algorithms(nodes, ranks):
    """With s bytes of a shard: (M - 1) s between nodes, (N - 1) M s within, on every rank."""
    topology = Topology(nodes, ranks)
    story = Story(topology, tuple(range(topology.world)), (64,) * topology.world)
    shard = 4 * 64
    gather, scatter = story.gather(), story.scatter()
    for rank in range(topology.world):
        expected = (ranks - 1) * nodes * shard, (nodes - 1) * shard
        assert traffic(gather, "gather", rank, topology) == expected
        assert traffic(scatter, "reduce", rank, topology) == expected
        assert traffic(scatter, "acquire", rank, topology) == (0, 0)
    moved = simulate(gather, topology, RATES).moved
    assert moved == (traffic(gather, "gather", 0, topology),) * topology.world


def test_distribution_within_a_node_overlaps_arrivals():
    """In one turn a node's pulls follow the arrival; in many only the last turn's do."""
    topology, group = Topology(2, 4), tuple(range(8))
    rates = Rates(within=1e4, between=1e3, reduce=1e4)
    shard = 4 * 4096

    def seconds(chunk_bytes):
        story = Story(topology, group, (4096,) * 8, chunk_bytes=chunk_bytes)
        return max(simulate(story.gather(), topology, rates).seconds)

    arrival, pulls = shard / rates.between, 3 * shard / rates.within
    assert seconds(shard) == pytest.approx(arrival + pulls)
    assert seconds(shard // 16) == pytest.approx(arrival + pulls / 16)


@pytest.mark.parametrize("nodes", [4, 8, 16])
@pytest.mark.parametrize("algorithm", ["gather", "scatter"])
def test_time_between_nodes_stays_at_the_bound_as_nodes_grow(algorithm, nodes):
    """Rotated puts never meet at one receiver. Put in rank order instead, they queue."""
    topology = Topology(nodes, 1)
    rates = Rates(within=1e12, between=1e3, reduce=1e12)
    story = Story(topology, tuple(range(nodes)), (64,) * nodes, chunk_bytes=256)
    schedule = story.schedule(algorithm)
    bound = (nodes - 1) * 256 / rates.between

    def in_rank_order(phase, rank, ops):
        puts = iter(
            sorted((op for op in ops if isinstance(op, Put)), key=lambda op: op.target.rank)
        )
        return [next(puts) if isinstance(op, Put) else op for op in ops]

    assert max(simulate(schedule, topology, rates).seconds) == pytest.approx(bound)
    mobbed = changed(schedule, in_rank_order)
    assert max(simulate(mobbed, topology, rates).seconds) > 1.2 * bound
