"""Triton runs the source of `bits` as it is, with the same bits."""

from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
SCRIPT = Path(__file__).with_name("one_definition.py")


def test_the_interpreter_of_triton_gives_the_same_bits(in_triton):
    in_triton(SCRIPT, "1")


def test_it_compiles_for_hopper_and_blackwell(in_triton):
    in_triton(SCRIPT, "0", "90", "100")
