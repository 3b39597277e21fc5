"""Cuts with owners: what a picture of the chain needs, without making all of it."""

from itertools import islice

import pytest

from sshsdp_shardchain import Cut, Degrees, Level, Range, ShardChain


def test_cuts_agree_with_owners_and_ranges(grid):
    for world, degrees in grid:
        chain = ShardChain(3 * degrees[2], Degrees(*degrees), world)
        for level in Level:
            for replica in range(world // chain.degrees.chunks(level)):
                cuts = list(chain.cuts(level, replica))
                assert tuple(cut.owner for cut in cuts) == chain.owners(level, replica)
                assert [cut.index for cut in cuts] == list(range(len(cuts)))
                assert all(cut.extent == chain.range(level, cut.owner) for cut in cuts)


def test_a_slice_of_cuts_is_that_of_all():
    chain = ShardChain(24, Degrees(2, 4, 12), 24)
    cuts = list(chain.cuts(Level.ZERO1, 1))
    for start in range(13):
        for stop in range(start, 13):
            assert list(chain.cuts(Level.ZERO1, 1, start=start, stop=stop)) == cuts[start:stop]


def test_literal_cuts_of_figure_4():
    chain = ShardChain(20, Degrees(2, 2, 4), 4)
    assert list(chain.cuts(Level.ZERO1, start=1, stop=3)) == [
        Cut(1, Range(5, 10), owner=2),
        Cut(2, Range(10, 15), owner=1),
    ]


def test_the_last_of_very_many_cuts_is_made_alone():
    chain = ShardChain(1 << 50, Degrees(8, 8, 1 << 40), 1 << 40)  # all of them would take hours
    (last,) = chain.cuts(Level.ZERO1, start=(1 << 40) - 1)
    assert last == Cut((1 << 40) - 1, Range((1 << 50) - (1 << 10), 1 << 50), owner=(1 << 40) - 1)
    assert [cut.owner for cut in islice(chain.cuts(Level.ZERO1), 3)] == [0, 8, 16]


def test_a_replica_that_is_not_there_is_refused_at_once():
    with pytest.raises(ValueError, match="expected a replica of zero1 from 0 to 1, got 2"):
        ShardChain(24, Degrees(2, 4, 12), 24).cuts(Level.ZERO1, 2)
