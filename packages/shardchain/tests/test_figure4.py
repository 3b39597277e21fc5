"""The example of the paper's Figure 4, in literal numbers.

A linear weight and the three heads of a projection in one list, on four ranks, zero1 = 4 and
zero2 = zero3 = 2. The cuts of the 20 elements, with the ranks in buffer order:

    |  rank 0  |  rank 2  |  rank 1  |  rank 3  |
    0          5    8    10    12    15 16      20
    |     Linear    |  Head0  |  Head1  |  Head2 |
"""

import pytest

from sshsdp_shardchain import Degrees, Fragment, Layout, Level, Range


@pytest.fixture
def layout():
    members = [("Linear", 8), ("Head0", 4), ("Head1", 4), ("Head2", 4)]
    return Layout.pack(members, Degrees(zero3=2, zero2=2, zero1=4), 4)


def test_zero1_owners_are_0_2_1_3(layout):
    assert layout.chain.owners(Level.ZERO1) == (0, 2, 1, 3)
    assert [layout.chain.range(Level.ZERO1, rank) for rank in range(4)] == [
        Range(0, 5),
        Range(10, 15),
        Range(5, 10),
        Range(15, 20),
    ]


def test_zero2_and_zero3_halves_are_on_ranks_0_2_and_1_3(layout):
    for level in (Level.ZERO2, Level.ZERO3):
        assert layout.chain.range(level, 0) == Range(0, 10)
        assert layout.chain.replicas(level, 0) == (0, 2)
        assert layout.chain.range(level, 1) == Range(10, 20)
        assert layout.chain.replicas(level, 1) == (1, 3)


def test_outer_gathers_go_over_0_2_and_1_3_then_runtime_gathers_over_0_1_and_2_3(layout):
    groups = {level: {layout.chain.group(level, r) for r in range(4)} for level in Level}
    assert groups[Level.ZERO1] == {(0, 2), (1, 3)}
    assert groups[Level.ZERO2] == {(0,), (1,), (2,), (3,)}
    assert groups[Level.ZERO3] == {(0, 1), (2, 3)}


def test_head0_is_updated_by_ranks_2_and_1_and_no_other(layout):
    assert layout.fragment("Head0", Level.ZERO1, 2) == Fragment(
        "Head0", Level.ZERO1, 2, start=0, stop=2, list_offset=8, local_offset=3
    )
    assert layout.fragment("Head0", Level.ZERO1, 1) == Fragment(
        "Head0", Level.ZERO1, 1, start=2, stop=4, list_offset=10, local_offset=0
    )
    assert layout.fragment("Head0", Level.ZERO1, 0).empty
    assert layout.fragment("Head0", Level.ZERO1, 3).empty


def test_head0_is_halved_between_the_zero3_shards(layout):
    for rank in (0, 2):
        assert layout.fragment("Head0", Level.ZERO3, rank) == Fragment(
            "Head0", Level.ZERO3, rank, start=0, stop=2, list_offset=8, local_offset=8
        )
    for rank in (1, 3):
        assert layout.fragment("Head0", Level.ZERO3, rank) == Fragment(
            "Head0", Level.ZERO3, rank, start=2, stop=4, list_offset=10, local_offset=0
        )


def test_description(layout):
    assert layout.describe() == (
        "layout of 4 members in 20 elements (0 padding), zero3=2 zero2=2 zero1=4, world 4\n"
        "  zero3: 2 chunks of 10, 2 replicas, owners 0 1\n"
        "  zero2: 2 chunks of 10, 2 replicas, owners 0 1\n"
        "  zero1: 4 chunks of 5, 1 replicas, owners 0 2 1 3\n"
        "  Linear  0..8  zero1 on 0 2\n"
        "  Head0   8..12  zero1 on 2 1\n"
        "  Head1   12..16  zero1 on 1 3\n"
        "  Head2   16..20  zero1 on 3"
    )
