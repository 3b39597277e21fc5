"""Fragments of update units travel over a transport as over the exchanges of the update package."""

import pytest
import torch
from testing.fragment_exchange import ExchangeConformance
from testing.ranks import run_ranks

from sshsdp_shardchain import ChainHolders, Degrees, Layout, Level
from sshsdp_updates import Muon, ShardedOptimizer, UpdateList, UpdateMember, heads
from sshsdp_zerosm import Topology, TransportExchange, connect


def on_transport(rank, nodes, function):
    topology = Topology(nodes or rank.world, rank.world // (nodes or rank.world))
    with connect(rank.rank, rank.world, rank.store, timeout=20, topology=topology) as transport:
        return function(TransportExchange(transport))


class TestWithinANode(ExchangeConformance):
    @pytest.fixture
    def run(self):
        return lambda world, function: run_ranks(on_transport, world, 1, function)


class TestBetweenNodes(ExchangeConformance):
    @pytest.fixture
    def run(self):
        return lambda world, function: run_ranks(on_transport, world, None, function)


def step(rank):
    """One step of Muon per head over a matrix that four ranks of two nodes share."""
    torch.manual_seed(0)
    weight = torch.randn(12, 5, dtype=torch.float64)
    layout = Layout.pack([("w", weight.numel())], Degrees.for_zero1(rank.world), rank.world)
    fragment = layout.fragment("w", Level.ZERO1, rank.rank)
    flat = weight.flatten()
    own, grad = (t[fragment.start : fragment.stop].clone() for t in (flat, flat.sin()))
    member = UpdateMember("w", torch.nn.Parameter(torch.empty(0)), fragment, (12, 5), heads(4))
    rule = Muon(lr=0.1, ns_dtype=torch.float64)
    topology = Topology(2, 2) if rank.world == 4 else None
    with connect(rank.rank, rank.world, rank.store, timeout=20, topology=topology) as transport:
        lists = [UpdateList("list", rule, (member,), own, grad, holders=ChainHolders(layout))]
        ShardedOptimizer(lists, exchange=TransportExchange(transport)).step()
    return own


def test_a_step_over_two_nodes_is_the_step_of_one_rank_bit_for_bit():
    (alone,) = run_ranks(step, 1)
    assert torch.equal(torch.cat(run_ranks(step, 4)), alone)


def test_an_arena_that_was_planned_has_the_size_that_is_asked_for():
    def scene(rank):
        with connect(rank.rank, rank.world, rank.store, timeout=20) as transport:
            exchange = TransportExchange(transport, transport.arena("planned", 64))
            exchange.reserve(64)
            with pytest.raises(ValueError, match="expected to reserve the 64 bytes"):
                exchange.reserve(65)

    run_ranks(scene, 2)
