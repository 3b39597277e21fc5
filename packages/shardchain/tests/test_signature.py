"""The signature stands for the content: equal for equal layouts, different for any change."""

import pickle
import string

from hypothesis import given
from hypothesis import strategies as st

from sshsdp_shardchain import Degrees, Layout, Placement, ShardChain

BASE = {"members": [("a", 5), ("b", 3)], "degrees": Degrees(1, 2, 4), "world": 8, "align": 1}

CHANGES = {
    "member name": {"members": [("a", 5), ("c", 3)]},
    "member size": {"members": [("a", 5), ("b", 2)]},
    "order": {"members": [("b", 3), ("a", 5)]},
    "one more member": {"members": [("a", 5), ("b", 3), ("c", 0)]},
    "zero3": {"degrees": Degrees(2, 2, 4)},
    "zero2": {"degrees": Degrees(1, 1, 4)},
    "zero1": {"degrees": Degrees(1, 2, 8)},
    "world": {"world": 16},
    "align": {"align": 2},
}


def pack(**changes):
    content = BASE | changes
    return Layout.pack(
        content["members"], content["degrees"], content["world"], align=content["align"]
    )


def test_every_change_of_content_changes_the_signature():
    signatures = {pack().signature()}
    for change in CHANGES.values():
        signatures.add(pack(**change).signature())
    assert len(signatures) == 1 + len(CHANGES)


def test_padding_at_the_end_is_content():
    placements = (Placement("a", 0, 3),)
    small, large = (Layout(placements, ShardChain(n, Degrees(1, 1, 2), 2)) for n in (4, 6))
    assert small.signature() != large.signature()


NAMES = st.text(string.ascii_letters + string.punctuation + "é\n\0", max_size=5)
MEMBERS = st.lists(st.tuples(NAMES, st.integers(0, 9)), max_size=3, unique_by=lambda m: m[0])


@given(MEMBERS, MEMBERS)
def test_signatures_are_equal_iff_layouts_are(first, second):
    one, two = pack(members=first), pack(members=second)
    assert (one.signature() == two.signature()) == (one == two)


def test_signature_is_literal_and_survives_pickling():
    layout = pack()
    assert layout.signature() == (
        "a5209fb224041b13f01560b18cff163b6f3ddf3c07d4ff2924db8b7439e48944"
    )
    assert pickle.loads(pickle.dumps(layout)).signature() == layout.signature()
    assert pickle.loads(pickle.dumps(layout)).placement("b") == layout.placement("b")
