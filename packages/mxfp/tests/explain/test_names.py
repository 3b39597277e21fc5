"""Formats as text."""

import pytest

from sshsdp_mxfp import E5M2, MXFP4, MXFP6, MXFP8
from sshsdp_mxfp.explain import name_of, parse_formats
from sshsdp_mxfp.explain.errors import UserError
from sshsdp_mxfp.explain.names import DEFAULT


def test_a_list_of_formats():
    assert parse_formats("e4m3, E5M2:32x32,e2m3:1x16:even,e2m1:32x1:floor,e4m3:1x32:rceil") == [
        MXFP8(ragged="partial"),
        MXFP8((32, 32), E5M2, ragged="partial"),
        MXFP6((1, 16), rule="even", ragged="partial"),
        MXFP4((32, 1), rule="floor", ragged="partial"),
    ]


def test_names_come_back():
    formats = parse_formats(DEFAULT)
    assert parse_formats(",".join(map(name_of, formats))) == formats
    assert len(formats) == DEFAULT.count(",") + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fp8", "expected formats of ELEMENT.*with an element of e4m3, e5m2.*got 'fp8'"),
        ("", "expected formats of ELEMENT.*got ''"),
        ("e4m3:1x32:floor:x", "expected formats of ELEMENT"),
        ("e4m3:32", "expected a block as in 32x32, got '32' in 'e4m3:32'"),
        ("e4m3:0x32", "expected a block of two positive sizes.*in 'e4m3:0x32'"),
        ("e4m3:1x32:up", "expected a rule of rceil, floor, ceil, even, got 'up'"),
        ("e2m1:1x3", "expected an even number of columns"),
    ],
)
def test_what_is_no_format_is_named(text, message):
    with pytest.raises(UserError, match=message):
        parse_formats(text)
