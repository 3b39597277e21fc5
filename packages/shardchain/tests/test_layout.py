"""Packing: order, alignment, padding, and the small cases."""

from hypothesis import given
from hypothesis import strategies as st

from sshsdp_shardchain import Degrees, Layout, Level, Placement, ShardChain

SIZES = st.lists(st.integers(0, 100), max_size=10)
ALIGN = st.integers(1, 16)


@given(sizes=SIZES, align=ALIGN, zero1=st.integers(1, 6))
def test_members_keep_their_order_and_start_aligned(sizes, align, zero1):
    members = [(f"m{i}", numel) for i, numel in enumerate(sizes)]
    layout = Layout.pack(members, Degrees(1, 1, zero1), zero1, align=align)
    assert [(p.name, p.numel) for p in layout.placements] == members
    end = 0
    for placement in layout.placements:
        assert placement.offset % align == 0
        assert end <= placement.offset < end + align
        end = placement.stop
    assert end <= layout.numel < end + align * zero1
    assert layout.numel % (align * zero1) == 0
    assert layout.padding == layout.numel - sum(sizes)


def test_literal_offsets():
    layout = Layout.pack([("a", 5), ("b", 0), ("c", 1), ("d", 9)], Degrees(2, 2, 2), 2, align=4)
    assert layout.placements == (
        Placement("a", 0, 5),
        Placement("b", 8, 0),
        Placement("c", 8, 1),
        Placement("d", 12, 9),
    )
    assert layout.numel == 24
    assert layout.padding == 9


def test_no_members():
    layout = Layout.pack([], Degrees(2, 2, 4), 4, align=8)
    assert (layout.numel, layout.padding) == (0, 0)
    assert layout.fragments(Level.ZERO1, 3) == ()
    assert layout.describe() == (
        "layout of 0 members in 0 elements (0 padding), zero3=2 zero2=2 zero1=4, world 4\n"
        "  zero3: 2 chunks of 0, 2 replicas, owners 0 1\n"
        "  zero2: 2 chunks of 0, 2 replicas, owners 0 1\n"
        "  zero1: 4 chunks of 0, 1 replicas, owners 0 2 1 3"
    )


def test_only_zero_size_members():
    layout = Layout.pack([("a", 0), ("b", 0)], Degrees(1, 1, 2), 2)
    assert layout.numel == 0
    assert all(fragment.empty for fragment in layout.fragments(Level.ZERO1, 1))
    assert layout.describe().endswith("  a  0..0  zero1 on no rank\n  b  0..0  zero1 on no rank")


def test_scalar_lies_on_one_rank():
    layout = Layout.pack([("scale", 1)], Degrees(4, 4, 4), 4)
    assert [layout.fragment("scale", Level.ZERO1, rank).numel for rank in range(4)] == [1, 0, 0, 0]
    assert layout.padding == 3


def test_tensor_smaller_than_the_world():
    layout = Layout.pack([("w", 3)], Degrees(8, 8, 8), 8)
    held = [layout.fragment("w", Level.ZERO3, rank).numel for rank in range(8)]
    assert held == [1, 1, 1, 0, 0, 0, 0, 0]


def test_world_of_one():
    layout = Layout.pack([("a", 3), ("b", 2)], Degrees(1, 1, 1), 1)
    assert layout.padding == 0
    for level in Level:
        assert [f.local_offset for f in layout.fragments(level, 0)] == [0, 3]


def test_placements_may_leave_gaps_when_given_directly():
    layout = Layout((Placement("a", 2, 3),), ShardChain(8, Degrees(1, 1, 2), 2))
    assert layout.padding == 5
    assert layout.fragment("a", Level.ZERO1, 1).local_offset == 0
