"""The markers of the root conftest: what runs, what is skipped, what must fail."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
CONFIG = "[pytest]\nmarkers =\n    gpu(count=1): needs devices\n    full: slow\n"
TESTS = """
import pytest

def test_plain(): pass

@pytest.mark.gpu(count=1000)
def test_device(): pass

@pytest.mark.full
def test_slow(): pass
"""


@pytest.fixture
def run(tmp_path):
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "pytest.ini").write_text(CONFIG)
    (tmp_path / "test_sample.py").write_text(TESTS)

    def run_pytest(*options):
        command = [sys.executable, "-m", "pytest", "-ra", *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    return run_pytest


def test_too_few_devices_skip_and_slow_tests_are_left_out(run):
    done = run()
    assert done.returncode == 0
    assert "1 passed, 1 skipped, 1 deselected" in done.stdout
    assert "expected 1000 CUDA device(s), got " in done.stdout


def test_required_devices_turn_the_skip_into_an_error(run):
    done = run("--require-gpu")
    assert done.returncode == 1
    assert "1 passed, 1 deselected, 1 error" in done.stdout


def test_the_full_grid_runs_when_asked_for(run):
    assert "2 passed, 1 skipped" in run("--full").stdout


def test_the_header_says_what_the_results_come_from(run):
    assert "torch: 2." in run().stdout
