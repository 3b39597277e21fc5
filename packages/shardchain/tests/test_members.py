"""Chains of four different sizes (zero3 < zero2 < zero1 < world) and who holds what inside whom."""

from itertools import chain as concatenated
from itertools import combinations, combinations_with_replacement, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_shardchain import Degrees, Level, ShardChain

LEVELS = tuple(Level)
FACTOR = st.integers(2, 4)


@st.composite
def deep_chains(draw):
    """(chain, factors): all of zero3 < zero2 < zero1 < world, chunks of up to 3 elements."""
    zero3, zero2, zero1, world = (draw(FACTOR) for _ in range(4))
    degrees = Degrees(zero3, zero3 * zero2, zero3 * zero2 * zero1)
    numel = draw(st.integers(0, 3)) * degrees.zero1
    return ShardChain(numel, degrees, degrees.zero1 * world)


def held_by(chain, holdings):
    degrees = chain.degrees
    return holdings(chain.numel, degrees.zero3, degrees.zero2, degrees.zero1, chain.world)


def joined(pieces):
    return list(concatenated.from_iterable(pieces))


@given(chain=deep_chains())
def test_ranges_tile_the_buffer_once_per_replica_set(chain, holdings):
    held = held_by(chain, holdings)
    for level in LEVELS:
        for replica in range(chain.world // chain.degrees.chunks(level)):
            owners = chain.owners(level, replica)
            assert joined(held[level, rank] for rank in owners) == list(range(chain.numel))
            for rank in owners:
                extent = chain.range(level, rank)
                assert list(range(extent.start, extent.stop)) == held[level, rank]


@given(chain=deep_chains())
def test_members_hold_the_outer_chunk_in_order(chain, holdings):
    held = held_by(chain, holdings)
    for outer, inner in combinations_with_replacement(LEVELS, 2):
        count = chain.degrees.chunks(inner) // chain.degrees.chunks(outer)
        for rank in range(chain.world):
            members = chain.members(outer, inner, rank)
            assert rank in members
            assert len(set(members)) == len(members) == count
            assert joined(held[inner, member] for member in members) == held[outer, rank]


@given(chain=deep_chains())
def test_members_are_consistent_and_never_cross_replica_sets(chain):
    for outer, inner in combinations(LEVELS, 2):
        sets = {chain.members(outer, inner, rank) for rank in range(chain.world)}
        assert sorted(joined(sets)) == list(range(chain.world))
        for members in sets:
            assert {chain.members(outer, inner, rank) for rank in members} == {members}
            assert len({rank // chain.degrees.chunks(inner) for rank in members}) == 1


@given(chain=deep_chains())
def test_members_of_adjacent_levels_are_groups(chain):
    for rank in range(chain.world):
        assert chain.members(Level.FULL, Level.FULL, rank) == chain.group(Level.FULL, rank)
        for outer, inner in pairwise(LEVELS):
            assert chain.members(outer, inner, rank) == chain.group(inner, rank)
            assert chain.members(inner, inner, rank) == (rank,)


@given(chain=deep_chains())
def test_gathering_level_by_level_equals_gathering_at_once(chain):
    def expanded(rank, path):
        ranks = [rank]
        for outer, inner in pairwise(path):
            ranks = joined(chain.members(outer, inner, member) for member in ranks)
        return tuple(ranks)

    for outer, middle, inner in combinations(LEVELS, 3):
        for rank in range(chain.world):
            at_once = chain.members(outer, inner, rank)
            assert expanded(rank, (outer, middle, inner)) == at_once


@given(chain=deep_chains())
def test_replicas_hold_the_same_elements_and_nobody_else_does(chain, holdings):
    held = held_by(chain, holdings)
    for level in LEVELS:
        for rank in range(chain.world):
            replicas = chain.replicas(level, rank)
            assert rank in replicas
            assert len(replicas) == chain.world // chain.degrees.chunks(level)
            assert all(held[level, replica] == held[level, rank] for replica in replicas)


def test_literal_members():
    chain = ShardChain(24, Degrees(2, 6, 12), 24)
    assert chain.members(Level.ZERO3, Level.ZERO1, 5) == (1, 7, 3, 9, 5, 11)
    assert chain.members(Level.ZERO3, Level.ZERO1, 17) == (13, 19, 15, 21, 17, 23)
    assert chain.members(Level.FULL, Level.ZERO2, 8) == (6, 8, 10, 7, 9, 11)
    assert chain.members(Level.ZERO2, Level.ZERO1, 0) == (0, 6)


def test_a_rank_out_of_the_world_is_refused():
    with pytest.raises(ValueError, match="expected a rank from 0 to 23, got 24"):
        ShardChain(24, Degrees(2, 6, 12), 24).members(Level.ZERO3, Level.ZERO1, 24)
