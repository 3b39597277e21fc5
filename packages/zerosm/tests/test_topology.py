"""Ranks are numbered node by node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_zerosm import Topology


@given(st.integers(1, 9), st.integers(1, 9))
def test_every_rank_is_on_one_node_at_one_place(nodes, ranks_per_node):
    topology = Topology(nodes, ranks_per_node)
    ranks = [rank for node in range(nodes) for rank in topology.ranks_of(node)]
    assert ranks == list(range(topology.world))
    for rank in ranks:
        assert topology.ranks_of(topology.node_of(rank))[topology.local_rank(rank)] == rank


def test_a_single_node_holds_all_ranks():
    assert Topology.single(5) == Topology(1, 5)
    assert {Topology.single(5).node_of(rank) for rank in range(5)} == {0}
    assert str(Topology(64, 8)) == "64x8"


def test_what_is_not_there_is_refused():
    with pytest.raises(ValueError, match="at least one node and one rank per node, got 0 nodes"):
        Topology(0, 4)
    for nodes, ranks in ((1.5, 1), (1, "2"), (None, 1)):
        with pytest.raises(ValueError, match=r"one rank per node, got .*; give both as ints"):
            Topology(nodes, ranks)
    with pytest.raises(ValueError, match="topology 2x3: expected a rank below 6, got 6"):
        Topology(2, 3).node_of(6)
    with pytest.raises(ValueError, match="expected a node below 2, got -1"):
        Topology(2, 3).ranks_of(-1)
