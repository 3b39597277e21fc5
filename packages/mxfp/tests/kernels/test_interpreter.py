"""Kernels run in Triton's interpreter, on the CPU: what they write is compared byte for byte."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
FILES = sorted(Path(__file__).parent.glob("interpreted/cases_*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_all_of(file):
    """In a process of its own, as Triton reads TRITON_INTERPRET where kernels are decorated."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
