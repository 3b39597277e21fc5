"""Triton runs the source of `bits` as it is, with the same bits."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


def run(folder, interpret, *arguments):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("one_definition.py")), *arguments],
        env={**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr


def test_the_interpreter_of_triton_gives_the_same_bits(tmp_path):
    run(tmp_path, "1")


def test_it_compiles_for_hopper_and_blackwell(tmp_path):
    run(tmp_path, "0", "90", "100")
