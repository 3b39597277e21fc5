"""A compact sequence of members reads like a tuple of them."""

import pickle
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_shardchain import Degrees, Layout, Placement, Placements, ShardChain


@st.composite
def tuples(draw):
    end = 0
    members = []
    for index, (gap, numel) in enumerate(
        draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=8))
    ):
        members.append(Placement(f"m{index}", end + gap, numel))
        end = members[-1].stop
    return tuple(members)


@given(members=tuples(), others=tuples())
def test_reads_like_a_tuple(members, others):
    compact = Placements.of(members)
    assert compact == members
    assert members == compact
    assert list(compact) == list(members)
    assert len(compact) == len(members)
    assert [compact[i] for i in range(-len(members), len(members))] == [*members, *members]
    assert compact[1:] == members[1:]
    assert compact[::-2] == members[::-2]
    assert hash(compact) == hash(members)
    assert repr(compact) == repr(members)
    assert (compact == Placements.of(others)) == (members == others)
    assert compact != list(members)
    assert compact.numel == sum(member.numel for member in members)
    assert compact.stop == (members[-1].stop if members else 0)


@given(members=tuples())
def test_survives_pickling_and_finds_every_name(members):
    compact = pickle.loads(pickle.dumps(Placements.of(members)))
    assert compact == members
    assert [compact.named(member.name) for member in members] == list(members)


def test_an_index_beyond_the_end_is_an_error_as_for_tuples():
    with pytest.raises(IndexError):
        Placements.of((Placement("a", 0, 1),))[1]


def test_layouts_of_equal_members_are_equal_and_hash_equally():
    chain = ShardChain(8, Degrees(1, 1, 2), 2)
    members = (Placement("a", 0, 3), Placement("b", 4, 4))
    one, two = Layout(members, chain), Layout(Placements.of(members), chain)
    assert one == two
    assert hash(one) == hash(two)
    assert one.placements == members


def test_a_list_takes_few_bytes_beyond_its_names():
    members = [(f"layers.{index}.weight", 1_000_000 + index) for index in range(100_000)]
    tracemalloc.start()
    layout = Layout.pack(members, Degrees.for_zero1(131_072), 131_072)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(layout.placements) == 100_000
    assert kept < 40 * len(members)
    assert peak < 200 * len(members)  # the check for names that repeat
