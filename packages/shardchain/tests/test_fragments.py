"""Fragments are intersections, and each of their offsets addresses the same elements."""

from hypothesis import given
from hypothesis import strategies as st

from sshsdp_shardchain import Degrees, Layout, Level


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
