"""Kernels can use the index formulas as they are."""

from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
SCRIPT = Path(__file__).with_name("kernels.py")


def test_formulas_give_the_same_in_the_interpreter_of_triton(in_triton):
    in_triton(SCRIPT, "1")


def test_formulas_compile_for_hopper_and_blackwell(in_triton):
    in_triton(SCRIPT, "0", "90", "100")
