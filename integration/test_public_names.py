"""No public name or signature changes by accident."""

import difflib

import pytest
from testing.public_names import RECORD, faces, lines

ACCEPT = (
    "If this is wanted: python -m testing.public_names, and a line in the CHANGELOG of the package "
    "that says what its users have to do."
)


def test_public_names_and_signatures_are_those_on_record():
    recorded = RECORD.read_text().splitlines()
    differences = difflib.unified_diff(recorded, lines(), "on record", "now", n=0, lineterm="")
    if text := "\n".join(differences):
        pytest.fail(f"{text}\n\n{ACCEPT}", pytrace=False)


def test_the_record_has_each_package_and_what_readmes_import():
    recorded = RECORD.read_text()
    assert len(faces()) >= 6
    assert [face for face in faces() if f"{face}." not in recorded] == []
