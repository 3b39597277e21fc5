"""Planned layouts: whole, aligned, within the budget, and the same whoever plans."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_shardchain import Degrees, Layout, Level, Member, Pack, Placement, plan_layout

from .brute_force import count_outside

SHAPES = st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 3, 8, 60]), st.integers(1, 6))
DEGREES = st.tuples(*[st.integers(1, 3)] * 3).map(lambda f: Degrees(f[0], f[0] * f[1], f[0] * f[1]))
ALIGN = st.sampled_from([1, 2, 3, 8])
BUDGET = st.sampled_from([0, 0.03, 0.2, 1.0])


@st.composite
def lists_of_members(draw):
    packs = draw(st.lists(st.lists(SHAPES, min_size=1, max_size=3), max_size=9))
    return [
        Pack(tuple(Member(f"m{i}.{j}", *shape) for j, shape in enumerate(pack)))
        if len(pack) > 1
        else Member(f"m{i}", *pack[0])
        for i, pack in enumerate(packs)
    ]


def tensors(given):
    return given.members if isinstance(given, Pack) else (given,)


def plan(members, degrees, align, budget):
    return plan_layout(members, degrees, 2 * degrees.zero1, align=align, budget=budget)


@given(members=lists_of_members(), degrees=DEGREES, align=ALIGN, budget=BUDGET)
def test_every_member_is_placed_once_aligned_and_packs_are_tight(members, degrees, align, budget):
    layout = plan(members, degrees, align, budget)
    placed = {placement.name: placement for placement in layout.placements}
    assert len(placed) == len(layout.placements) == sum(len(tensors(m)) for m in members)
    for member in members:
        pieces = [placed[tensor.name] for tensor in tensors(member)]
        assert [piece.numel for piece in pieces] == [t.numel for t in tensors(member)]
        assert pieces[0].offset % align == 0
        assert all(one.stop == two.offset for one, two in pairwise(pieces))
    assert layout.numel % (align * degrees.zero1) == 0
    assert layout.chain.degrees == degrees


@given(members=lists_of_members(), degrees=DEGREES, align=ALIGN, budget=BUDGET)
def test_padding_keeps_to_the_budget_or_to_the_smallest_list(members, degrees, align, budget):
    layout = plan(members, degrees, align, budget)
    numels = [sum(tensor.numel for tensor in tensors(member)) for member in members]
    rounded = sum(-(-numel // align) * align for numel in numels)
    unit = align * degrees.zero1
    smallest = -(-rounded // unit) * unit - sum(numels)
    assert layout.padding == layout.choice.padding <= layout.choice.allowed_padding
    assert layout.choice.allowed_padding <= max(int(sum(numels) * budget), smallest)


@given(members=lists_of_members(), degrees=DEGREES, align=ALIGN, budget=BUDGET)
def test_the_choice_reports_what_counting_finds(members, degrees, align, budget):
    layout = plan(members, degrees, align, budget)
    chunk = layout.numel // degrees.zero1
    counted = counted_bytes = 0
    for member in members:
        for tensor in tensors(member):
            start = layout.placement(tensor.name).offset
            counted += count_outside(start, ((tensor.numel, tensor.unit, 1),), chunk)
            shape = (tensor.numel, tensor.unit, tensor.bytes_per_element)
            counted_bytes += count_outside(start, (shape,), chunk)
    assert (layout.choice.exchanged, layout.choice.exchanged_bytes) == (counted, counted_bytes)


@given(members=lists_of_members(), degrees=DEGREES, budget=BUDGET, seed=st.integers(0, 99))
def test_the_order_in_which_members_come_does_not_matter(members, degrees, budget, seed):
    shuffled = random.Random(seed).sample(members, len(members))
    one, two = (plan(given, degrees, 2, budget) for given in (members, shuffled))
    assert one == two
    assert one.choice == two.choice
    assert one.signature() == two.signature()


def test_names_decide_among_equals():
    members = [Member(name, 8, 8) for name in ("d", "b", "a", "c")]
    layout = plan_layout(members, Degrees.for_zero3(4), 4)
    assert [placement.name for placement in layout.placements] == ["a", "b", "c", "d"]


def test_members_without_units_lie_in_the_order_of_names_with_no_padding_between():
    members = [Member("c", 5), Member("a", 9), Member("b", 2)]
    layout = plan_layout(members, Degrees.for_zero1(4), 4)
    assert layout == Layout.pack([("a", 9), ("b", 2), ("c", 5)], Degrees.for_zero1(4), 4)
    assert layout.choice.optimal


def test_small_members_fill_what_would_be_padding():
    members = [Member("matrix0", 6, 6), Member("matrix1", 6, 6), Member("norm", 2), Member("s", 2)]
    layout = plan_layout(members, Degrees.for_zero3(2), 2)
    assert layout.placements == (
        Placement("matrix0", 0, 6),
        Placement("norm", 6, 2),
        Placement("matrix1", 8, 6),
        Placement("s", 14, 2),
    )
    assert (layout.choice.exchanged, layout.padding, layout.choice.optimal) == (0, 0, True)


def test_a_budget_buys_freedom_from_cuts():
    members = [Member(f"expert{index}", 10, 10) for index in range(5)]
    cut = plan_layout(members, Degrees.for_zero3(2), 2, budget=0)
    whole = plan_layout(members, Degrees.for_zero3(2), 2, budget=0.2)
    assert (cut.choice.exchanged, cut.padding) == (5, 0)
    assert (whole.choice.exchanged, whole.padding) == (0, 10)


def test_dearer_units_are_kept_whole_first():
    members = [Member("cheap", 10, 10, bytes_per_element=1), Member("dear", 20, 20, 6)]
    layout = plan_layout(members, Degrees.for_zero3(2), 2, budget=0.5)
    assert layout.choice.exchanged == 0
    layout = plan_layout(members, Degrees.for_zero3(2), 2, budget=0)
    assert layout.choice.exchanged_bytes == 30  # 5 elements of the larger: each tensor is cut once


def test_a_pack_is_cut_at_the_units_of_its_members():
    qkv = Pack((Member("q", 16, 4), Member("k", 4, 2), Member("v", 4, 2)))
    layout = plan_layout([qkv, Member("o", 24, 6)], Degrees.for_zero3(6), 6)
    assert [(p.name, p.offset) for p in layout.placements] == [
        ("o", 0),
        ("q", 24),
        ("k", 40),
        ("v", 44),
    ]
    assert layout.choice.exchanged == 0 + 4  # q's units have 4 elements, chunks have 8


def test_the_description_says_what_was_chosen():
    layout = plan_layout([Member("a", 8, 8), Member("b", 8, 8)], Degrees.for_zero1(2), 2)
    assert layout.describe().splitlines()[4] == (
        "  planned by name: 0 elements exchanged (0 bytes), 0 padding of 0 allowed, optimal"
    )
    bare = Layout.pack([("a", 8), ("b", 8)], Degrees.for_zero1(2), 2)
    assert "planned" not in bare.describe()
    assert layout == bare  # how it came about is no part of what it is
    assert layout.signature() == bare.signature()


@pytest.mark.parametrize("members", [[], [Member("empty", 0, 5)], [Member("scalar", 1, 1)]])
def test_lists_without_much_in_them(members):
    layout = plan_layout(members, Degrees.for_zero3(4), 4, align=2)
    assert layout.numel == (8 if members and members[0].numel else 0)
    assert layout.choice.optimal
    assert [fragment.numel for fragment in layout.overlapping(Level.ZERO1, 0)] in ([], [1])


def test_equal_lists_of_other_names_get_equal_places():
    layers = [
        plan_layout(
            [
                Member(f"layers.{layer}.{name}", n, n)
                for name, n in (("w", 70), ("v", 30), ("u", 9))
            ],
            Degrees.for_zero3(4),
            4,
            budget=0.1,
        )
        for layer in (9, 10)
    ]
    one, two = ([(p.name[-1], p.offset) for p in layout.placements] for layout in layers)
    assert one == two
