"""Every refusal says what was expected, what came and what to do."""

import re

import pytest

from sshsdp_shardchain import (
    Degrees,
    Layout,
    Level,
    Member,
    Pack,
    Placement,
    Range,
    ShardChain,
    plan_layout,
)

CHAIN = ShardChain(8, Degrees(1, 2, 4), 8)
LAYOUT = Layout.pack([("layers.0.weight", 4), ("layers.1.weight", 4)], Degrees(1, 1, 2), 2)
NESTED = "expected each degree to divide the next (zero3 | zero2 | zero1), "
SUGGESTED = r"use Degrees\(zero3=(\d+), zero2=(\d+), zero1=(\d+)\)"
POSITIVE = "expected degrees that are positive integers, "

CASES = {
    NESTED + "got (2, 3, 6); use Degrees(zero3=1, zero2=3, zero1=6)": lambda: Degrees(2, 3, 6),
    NESTED + "got (2, 4, 6); use Degrees(zero3=1, zero2=3, zero1=6)": lambda: Degrees(2, 4, 6),
    NESTED + "got (4, 2, 2); use Degrees(zero3=2, zero2=2, zero1=2)": lambda: Degrees(4, 2, 2),
    POSITIVE + "got zero3=0; use zero3=1 where nothing is sharded": lambda: Degrees(0, 1, 1),
    POSITIVE + "got zero1=2.0; use zero1=1 where nothing is sharded": lambda: Degrees(1, 1, 2.0),
    POSITIVE + "got zero2=True; use zero2=1 where nothing is sharded": lambda: Degrees(1, True, 1),
    "expected zero1 to divide the world of 6 ranks, got zero1=4; "
    "use Degrees(zero3=1, zero2=1, zero1=3), or 8 ranks": lambda: Degrees(2, 2, 4).check_world(6),
    "expected a world of at least 1 rank, got 0; pass its size": lambda: Degrees(
        1, 1, 1
    ).check_world(0),
    "expected 0 <= start <= stop, got start=3, stop=2; "
    "an empty range has stop equal to start": lambda: Range(3, 2),
    "expected a buffer of a multiple of zero1=4 elements, got numel=10; pad it to 12": lambda: (
        ShardChain(10, Degrees(1, 2, 4), 4)
    ),
    "expected a buffer of 0 or more elements, got numel=-4; pass its size": lambda: ShardChain(
        -4, Degrees(1, 2, 4), 4
    ),
    "expected a rank from 0 to 7, got 8; "
    "use the rank within the group that the chain is cut over": lambda: CHAIN.range(Level.FULL, 8),
    "expected a rank from 0 to 7, got -1; "
    "use the rank within the group that the chain is cut over": lambda: CHAIN.group(
        Level.ZERO1, -1
    ),
    "expected a replica of zero1 from 0 to 1, got 2; "
    "8 ranks hold the buffer 2 times at this level": lambda: CHAIN.owners(Level.ZERO1, 2),
    "expected the coarser of two levels above the finer, got zero1 above zero3; "
    "swap them": lambda: CHAIN.members(Level.ZERO1, Level.ZERO3, 0),
    "expected chunks of zero1 within 0 and 4, got start=3, stop=5; "
    "ask for those that exist": lambda: CHAIN.cuts(Level.ZERO1, start=3, stop=5),
    "expected an alignment of 1 or more elements, got align=0; "
    "use 1 where members may start anywhere": lambda: Layout.pack([], Degrees(1, 1, 1), 1, align=0),
    "expected 0 or more elements, got -1 for member 'w'; pass its numel": lambda: Layout.pack(
        [("w", -1)], Degrees(1, 1, 1), 1
    ),
    "expected members of different names, got 'w' 2 times; rename all but one": lambda: Layout.pack(
        [("w", 1), ("v", 1), ("w", 2)], Degrees(1, 1, 1), 1
    ),
    "expected member 'b' at offset 4 or later with 0 or more elements, got offset=3, numel=2; "
    "order members by offset and leave no overlap": lambda: Layout(
        (Placement("a", 0, 4), Placement("b", 3, 2)), CHAIN
    ),
    "expected members within the buffer of 8 elements, got 'a' ending at 9; "
    "enlarge the buffer": lambda: Layout((Placement("a", 0, 9),), CHAIN),
    "expected 0 or more elements, got -2 for member 'v'; pass its numel": lambda: Member("v", -2),
    "expected a unit and bytes per element of 1 or more in member 'v', got unit=0, "
    "bytes_per_element=6; use unit=1 where it may be cut anywhere": lambda: Member("v", 8, 0, 6),
    "expected at least one member in a pack, got none; leave it out": lambda: Pack(()),
    "expected a padding budget of 0 or more, got budget=-0.1; 0.03 allows 3%": lambda: plan_layout(
        [], Degrees(1, 1, 1), 1, budget=-0.1
    ),
    "expected members of different names, got 'v' 2 times; rename all but one": lambda: plan_layout(
        [Member("v", 1), Pack((Member("u", 1), Member("v", 2)))], Degrees(1, 1, 1), 1
    ),
}


@pytest.mark.parametrize("message", CASES)
def test_message(message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared below
        CASES[message]()
    assert str(caught.value) == message


def test_unknown_member_names_the_closest():
    with pytest.raises(KeyError) as caught:
        LAYOUT.placement("layer.0.weight")
    assert caught.value.args == (
        (
            "expected one of the 2 members, got 'layer.0.weight'; "
            "did you mean 'layers.0.weight' or 'layers.1.weight'?"
        ),
    )
    with pytest.raises(KeyError) as caught:
        LAYOUT.fragment("bias", Level.FULL, 0)
    assert caught.value.args == ("expected one of the 2 members, got 'bias'; check the name",)


@pytest.mark.parametrize("align", [0, -1])
def test_packing_and_planning_refuse_the_same_alignments(align):
    texts = set()
    for place in (Layout.pack, plan_layout):
        with pytest.raises(ValueError, match=f"got align={align}") as caught:
            place([], Degrees(1, 1, 1), 1, align=align)
        texts.add(str(caught.value))
    assert len(texts) == 1


@pytest.mark.parametrize("world", range(1, 13))
def test_the_degrees_that_a_refusal_names_are_accepted(world):
    for wrong in [(1, 1, world + 1), (2, 5, 7), (3, 2, 12), (world, world, 2 * world)]:
        try:
            Degrees(*wrong).check_world(world)
        except ValueError as error:
            text = str(error)
            named = Degrees(*map(int, re.search(SUGGESTED, text).groups()))
            named.check_world(world if "world" in text else named.zero1)
        else:
            assert world % wrong[2] == 0
