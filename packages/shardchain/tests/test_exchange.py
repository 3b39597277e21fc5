"""Parts of a unit are what its holders hold of it; they and nothing else move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_shardchain import (
    ChainHolders,
    Degrees,
    Holding,
    Layout,
    Level,
    Strip,
    Units,
    exchange,
    parts,
)


@st.composite
def layouts(draw):
    zero3 = draw(st.integers(1, 2))
    zero2 = zero3 * draw(st.integers(1, 3))
    zero1 = zero2 * draw(st.integers(1, 3))
    world = zero1 * draw(st.integers(1, 2))
    heads = draw(st.integers(1, 4))
    sizes = [heads * draw(st.integers(0, 9)) * draw(st.integers(1, 4)) for _ in range(3)]
    members = [(f"m{i}", numel) for i, numel in enumerate(sizes)]
    return Layout.pack(members, Degrees(zero3, zero2, zero1), world), heads


@given(layouts())
def test_holders_are_the_fragments_of_every_set_of_replicas(case):
    layout, _ = case
    holders = ChainHolders(layout)
    for placement in layout.placements:
        for replica in range(layout.chain.world // holders.width):
            expected = [
                (fragment.rank, fragment.start, fragment.stop)
                for rank in layout.chain.owners(Level.ZERO1, replica)
                for fragment in [layout.fragment(placement.name, Level.ZERO1, rank)]
                if not fragment.empty
            ]
            shift = replica * holders.width
            found = [(h.rank + shift, h.start, h.stop) for h in holders.of(placement.name)]
            assert found == expected


@given(layouts(), st.booleans())
def test_parts_are_what_ranks_hold_of_a_unit(case, columns):
    layout, heads = case
    holders = ChainHolders(layout)
    for placement in layout.placements:
        numel = placement.numel
        if columns and numel:
            units = Units.columns(numel // heads, [1] * heads)
        else:
            units = Units.pieces([numel // heads] * heads)
        for strip in (strip for strip in units.strips if strip.numel):
            elements = [
                strip.start + run * strip.stride + i
                for run in range(strip.count)
                for i in range(strip.length)
            ]
            expected = []
            for holding in holders.of(placement.name):
                inside = [i for i, e in enumerate(elements) if holding.start <= e < holding.stop]
                if inside:
                    expected.append((holding.rank, inside[0], inside[-1] + 1))
            found = parts(strip, holders.of(placement.name))
            assert [(part.rank, part.start, part.stop) for part in found] == expected


def test_all_but_the_executor_s_part_moves():
    holdings = [Holding(3, 0, 4), Holding(0, 4, 5), Holding(2, 5, 12)]
    unit = exchange(Strip(2, 8), holdings, executor=3)
    assert [(p.rank, p.start, p.stop) for p in unit.parts] == [(3, 0, 2), (0, 2, 3), (2, 3, 8)]
    assert [(p.rank, p.start, p.stop) for p in unit.incoming] == [(0, 2, 3), (2, 3, 8)]
    assert (unit.moved, unit.least) == (6, 3)
    assert exchange(Strip(2, 8), holdings).executor == 2


def test_an_executor_without_a_part_is_refused():
    with pytest.raises(ValueError, match=r"among the holders \[0, 1\].*got 2"):
        exchange(Strip(0, 4), [Holding(0, 0, 2), Holding(1, 2, 4)], executor=2)


def test_holders_of_less_than_the_unit_are_refused():
    with pytest.raises(ValueError, match=r"holders of all 4 elements .* got holders of 2"):
        parts(Strip(0, 4), [Holding(0, 0, 2)])
