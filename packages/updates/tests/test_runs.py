"""Runs are the maximal contiguous ranges of members with one key."""

from hypothesis import given
from hypothesis import strategies as st

from sshsdp_shardchain import Degrees, Fragment, Layout, Level
from sshsdp_updates.runs import Run, runs


@st.composite
def keyed_fragments(draw):
    world = draw(st.integers(1, 4))
    numels = draw(st.lists(st.integers(0, 12), min_size=1, max_size=6))
    align = draw(st.sampled_from([1, 2, 4]))
    members = [(f"p{i}", n) for i, n in enumerate(numels)]
    layout = Layout.pack(members, Degrees(1, 1, world), world, align=align)
    fragments = layout.fragments(Level.ZERO1, draw(st.integers(0, world - 1)))
    keys = [draw(st.sampled_from([None, 0, -1])) for _ in fragments]
    return draw(st.permutations(list(zip(fragments, keys, strict=True))))


def key_of_element(pairs):
    return {
        element: key
        for fragment, key in pairs
        if key is not None
        for element in range(fragment.local_offset, fragment.local_offset + fragment.numel)
    }


@given(keyed_fragments())
def test_they_cover_exactly_the_keyed_elements(pairs):
    found = runs([fragment for fragment, _ in pairs], [key for _, key in pairs])
    covered = [(e, run.key) for run in found for e in range(run.start, run.stop)]
    assert covered == sorted(key_of_element(pairs).items())


@given(keyed_fragments())
def test_none_can_grow(pairs):
    keys = key_of_element(pairs)
    for run in runs([fragment for fragment, _ in pairs], [key for _, key in pairs]):
        assert run.start < run.stop
        assert keys.get(run.start - 1) != run.key
        assert keys.get(run.stop) != run.key


def test_padding_ends_a_run_and_an_empty_fragment_does_not():
    def fragment(offset, numel):
        return Fragment("p", Level.ZERO1, 0, 0, numel, offset, offset)

    fragments = [fragment(0, 3), fragment(3, 0), fragment(3, 2), fragment(8, 4)]
    assert runs(fragments, [0, None, 0, 0]) == (Run(0, 5, 0), Run(8, 12, 0))
