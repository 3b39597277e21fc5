"""The split covers the stream with two disjoint sides, whatever the documents' lengths."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.split import split_stream

lengths = st.lists(st.integers(0, 5000), min_size=1, max_size=40).filter(lambda n: sum(n) > 1000)
fractions = st.floats(0.01, 0.5)


@given(lengths, fractions)
def test_every_token_is_on_exactly_one_side(documents, fraction):
    split = split_stream(documents, fraction)
    pieces = sorted((*split.train, *split.validation), key=lambda piece: piece.start)
    assert pieces[0].start == 0
    assert pieces[-1].stop == sum(documents)
    assert all(a.stop == b.start for a, b in pairwise(pieces))


@given(lengths, fractions)
def test_about_the_wanted_share_is_held_out(documents, fraction):
    held_out = sum(piece.numel for piece in split_stream(documents, fraction).validation)
    assert fraction <= held_out / sum(documents) <= 1.25 * fraction + 0.01


@given(lengths, fractions)
def test_the_split_is_deterministic(documents, fraction):
    assert split_stream(documents, fraction) == split_stream(list(documents), fraction)


def test_small_documents_stay_whole():
    split = split_stream([10] * 1000, 0.05)
    assert all(piece.start % 10 == 0 and piece.numel == 10 for piece in split.validation)


def test_one_token_cannot_be_split():
    with pytest.raises(InputError, match="to train on and to validate with, got 1 tokens"):
        split_stream([1], 0.5)
