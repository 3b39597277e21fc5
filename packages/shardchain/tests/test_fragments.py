"""Fragments are intersections, and each of their offsets addresses the same elements."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from sshsdp_shardchain import Degrees, Fragment, Layout, Level, Placement, ShardChain


@st.composite
def layouts(draw):
    zero3 = draw(st.integers(1, 3))
    zero2 = zero3 * draw(st.integers(1, 3))
    zero1 = zero2 * draw(st.integers(1, 3))
    world = zero1 * draw(st.integers(1, 2))
    sizes = draw(st.lists(st.integers(0, 40), max_size=8))
    align = draw(st.sampled_from([1, 2, 3, 8]))
    members = [(f"m{i}", numel) for i, numel in enumerate(sizes)]
    return Layout.pack(members, Degrees(zero3, zero2, zero1), world, align=align)


def ranks_and_levels(layout):
    return [(level, rank) for level in Level for rank in range(layout.chain.world)]


def oracle(layout, holdings):
    degrees = layout.chain.degrees
    return holdings(layout.numel, degrees.zero3, degrees.zero2, degrees.zero1, layout.chain.world)


@given(layout=layouts())
def test_fragments_are_intersections(layout, holdings):
    held = oracle(layout, holdings)
    for level, rank in ranks_and_levels(layout):
        for placement, fragment in zip(
            layout.placements, layout.fragments(level, rank), strict=True
        ):
            mine = set(held[level, rank])
            flat = [i for i in range(placement.numel) if placement.offset + i in mine]
            assert list(range(fragment.start, fragment.stop)) == flat
            assert fragment.numel == len(flat)
            assert fragment.empty == (not flat)


@given(layout=layouts())
def test_list_and_local_offsets_address_the_same_elements(layout, holdings):
    held = oracle(layout, holdings)
    for level, rank in ranks_and_levels(layout):
        local = held[level, rank]
        for fragment in layout.fragments(level, rank):
            offset = layout.placement(fragment.name).offset
            wanted = [offset + i for i in range(fragment.start, fragment.stop)]
            assert local[fragment.local_offset :][: fragment.numel] == wanted
            assert fragment.list_offset == offset + fragment.start


@given(layout=layouts())
def test_offsets_of_empty_fragments_stay_within_bounds(layout):
    for level, rank in ranks_and_levels(layout):
        for fragment in layout.fragments(level, rank):
            assert 0 <= fragment.start <= layout.placement(fragment.name).numel
            assert 0 <= fragment.list_offset <= layout.numel
            assert 0 <= fragment.local_offset <= layout.chain.range(level, rank).numel


@given(layout=layouts())
def test_one_replica_set_holds_each_element_of_a_member_once(layout):
    for level in Level:
        for placement in layout.placements:
            flat = []
            for rank in layout.chain.owners(level):
                fragment = layout.fragment(placement.name, level, rank)
                flat += range(fragment.start, fragment.stop)
            assert flat == list(range(placement.numel))


@given(layout=layouts())
def test_fragment_by_name_equals_the_one_in_order(layout):
    for level, rank in ranks_and_levels(layout):
        for fragment in layout.fragments(level, rank):
            assert layout.fragment(fragment.name, level, rank) == fragment
            assert (fragment.level, fragment.rank) == (level, rank)


@st.composite
def layouts_with_gaps(draw):
    packed = draw(layouts())
    gaps = [draw(st.integers(0, 5)) for _ in packed.placements]
    moved = tuple(
        Placement(member.name, member.offset + sum(gaps[: index + 1]), member.numel)
        for index, member in enumerate(packed.placements)
    )
    degrees, world = packed.chain.degrees, packed.chain.world
    end = moved[-1].stop if moved else 0
    return Layout(moved, ShardChain(-(-end // degrees.zero1) * degrees.zero1, degrees, world))


@given(layout=layouts_with_gaps())
def test_overlapping_yields_the_fragments_that_are_not_empty(layout):
    for level, rank in ranks_and_levels(layout):
        held = [fragment for fragment in layout.fragments(level, rank) if not fragment.empty]
        assert list(layout.overlapping(level, rank)) == held


def test_overlapping_passes_empty_members_that_share_an_offset():
    members = [("a", 0), ("b", 4), ("c", 0), ("d", 0), ("e", 4), ("f", 0)]
    layout = Layout.pack(members, Degrees.for_zero1(2), 2)
    assert list(layout.overlapping(Level.ZERO1, 1)) == [
        Fragment("e", Level.ZERO1, 1, start=0, stop=4, list_offset=4, local_offset=0)
    ]


def test_overlapping_touches_only_what_a_rank_holds():
    members = [(f"m{index}", 1_000_000) for index in range(50_000)]
    layout = Layout.pack(members, Degrees.for_zero1(131_072), 131_072)
    tracemalloc.start()
    held = list(layout.overlapping(Level.ZERO1, 77_777))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(held) in (1, 2)
    assert peak < 10_000
