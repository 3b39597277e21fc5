"""Chains of all nested degrees of worlds up to 12, against the oracle of conftest.py."""

from itertools import chain as concatenated
from itertools import pairwise

import pytest

from sshsdp_shardchain import Degrees, Level, Range, ShardChain


@pytest.fixture(scope="module", params=[0, 1, 3])
def chains(request, grid, holdings):
    """(chain, elements by (level, rank)) with that many elements in every smallest chunk."""
    return [
        (
            ShardChain(request.param * degrees[2], Degrees(*degrees), world),
            holdings(request.param * degrees[2], *degrees, world),
        )
        for world, degrees in grid
    ]


def elements(extent):
    return list(range(extent.start, extent.stop))


def joined(pieces):
    return list(concatenated.from_iterable(pieces))


def test_the_grid_is_complete(grid):
    # As many as there are ways to write a world as a product of four factors, in order.
    assert len(grid) == 1 + 4 + 4 + 10 + 4 + 16 + 4 + 20 + 10 + 16 + 4 + 40
    assert (12, (2, 4, 12)) in grid


def test_ranges_equal_the_oracle(chains):
    for chain, held in chains:
        for (level, rank), expected in held.items():
            assert elements(chain.range(Level(level), rank)) == expected


def test_ranges_tile_the_list_once_per_replica_set(chains):
    for chain, _ in chains:
        for level in Level:
            for replica in range(chain.world // chain.degrees.chunks(level)):
                owners = chain.owners(level, replica)
                assert len(set(owners)) == len(owners)
                pieces = [elements(chain.range(level, rank)) for rank in owners]
                assert joined(pieces) == list(range(chain.numel))


def test_replica_sets_of_a_level_share_no_rank(chains):
    for chain, _ in chains:
        for level in Level:
            sets = [
                chain.owners(level, replica)
                for replica in range(chain.world // chain.degrees.chunks(level))
            ]
            assert sorted(joined(sets)) == list(range(chain.world))


def test_levels_nest(chains):
    for chain, _ in chains:
        for rank in range(chain.world):
            for outer, inner in pairwise(Level):
                held = chain.range(inner, rank)
                assert chain.range(outer, rank).intersect(held) == held


def test_replicas_are_the_ranks_with_the_same_elements(grid):
    for world, degrees in grid:
        chain = ShardChain(degrees[2], Degrees(*degrees), world)  # no empty chunk: all differ
        for level in Level:
            for rank in range(world):
                same = [
                    r for r in range(world) if chain.range(level, r) == chain.range(level, rank)
                ]
                assert chain.replicas(level, rank) == tuple(same)


def test_groups_partition_the_ranks(chains):
    for chain, _ in chains:
        for level in Level:
            groups = {chain.group(level, rank) for rank in range(chain.world)}
            assert sorted(joined(groups)) == list(range(chain.world))
            assert all(rank in chain.group(level, rank) for rank in range(chain.world))


def test_hierarchical_all_gathers_append_neighbours_without_reordering(chains):
    for chain, held in chains:
        buffers = {rank: held["zero1", rank] for rank in range(chain.world)}
        for outer, inner in reversed(list(pairwise(Level))):
            buffers = {
                rank: joined(buffers[peer] for peer in chain.group(inner, rank))
                for rank in range(chain.world)
            }
            for rank in range(chain.world):
                assert buffers[rank] == held[outer, rank]


def test_coarsest_cut_is_contiguous_in_rank():
    chain = ShardChain(24, Degrees(2, 6, 12), 24)
    assert chain.group(Level.ZERO3, 5) == (4, 5)
    assert chain.group(Level.ZERO2, 5) == (1, 3, 5)
    assert chain.group(Level.ZERO1, 5) == (5, 11)
    assert chain.group(Level.FULL, 5) == (5,)
    assert chain.replicas(Level.ZERO1, 5) == (5, 17)
    assert chain.owners(Level.ZERO2, 1) == (6, 8, 10, 7, 9, 11)


def test_world_of_one_holds_everything():
    chain = ShardChain(5, Degrees(1, 1, 1), 1)
    for level in Level:
        assert chain.range(level, 0) == Range(0, 5)
        assert chain.group(level, 0) == chain.replicas(level, 0) == chain.owners(level) == (0,)
