"""Planted faults: each can still be planted, and a session tells what tests do about them."""

import io
from collections import Counter
from pathlib import Path

import pytest
from testing.mutants.mutant import Mutant, read_mutants
from testing.mutants.session import run_mutants, table

ROOT = Path(__file__).parents[1]
PACKAGES = {path.name for path in (ROOT / "packages").iterdir() if path.is_dir()}
SOURCE = "packages/one/src/one.py"
TESTS = """
from packages.one.src.one import double

def test_of_five():
    assert double(5) == 10

def test_of_nothing():
    assert double(0) == 0
"""


def test_every_fault_can_be_planted_and_its_test_exists():
    problems = [(mutant.name, mutant.problem(ROOT)) for mutant in read_mutants()]
    assert not [problem for problem in problems if problem[1]]


def test_every_package_has_faults():
    counts = Counter(mutant.package for mutant in read_mutants())
    assert set(counts) == PACKAGES
    assert min(counts.values()) >= 5


@pytest.fixture
def tree(tmp_path):
    """A tree of one package with two tests."""
    (tmp_path / SOURCE).parent.mkdir(parents=True)
    (tmp_path / SOURCE).write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "packages/one/tests.py").write_text(TESTS)
    return tmp_path


def fault(name, old, new, test="test_of_five", file=SOURCE):
    return Mutant(name, file, old, new, f"packages/one/tests.py::{test}")


def test_a_session_tells_noticed_faults_from_those_that_are_not(tree, tmp_path_factory):
    mutants = [
        fault("noticed", "2 * x", "3 * x"),
        fault("survives", "2 * x", "3 * x", "test_of_nothing"),
        fault("no Python", "return", "return return"),
        fault("gone", "4 * x", "3 * x"),
    ]
    progress = io.StringIO()
    results = run_mutants(mutants, tree, tmp_path_factory.mktemp("copy") / "tree", progress)
    assert [result.noticed for result in results] == [True, False, False, False]
    outcomes = [result.outcome for result in results]
    assert outcomes[:2] == ["noticed", "SURVIVED"]
    assert outcomes[2].startswith("no test was run")
    assert "got it 0 times" in outcomes[3]
    text = table(results)
    assert "1 of 4 faults noticed" in text
    assert f"{SOURCE}, packages/one/tests.py::test_of_nothing" in text
    assert (tree / SOURCE).read_text() == "def double(x):\n    return 2 * x\n"


def test_tests_that_fail_without_a_fault_stop_the_session(tree, tmp_path_factory):
    (tree / SOURCE).write_text("def double(x):\n    return 4 * x\n")
    copy = tmp_path_factory.mktemp("copy") / "tree"
    with pytest.raises(RuntimeError, match=r"(?s)tests that pass without a fault, got: .*1 failed"):
        run_mutants([fault("any", "4 * x", "3 * x")], tree, copy, io.StringIO())


@pytest.mark.parametrize(
    ("mutant", "text"),
    [
        (fault("x", "2 * x", "3 * x", file="packages/one/src/two.py"), "got none; the fault moved"),
        (fault("x", "x", "y"), "got it 2 times; follow the code, or quote more"),
        (fault("x", "2 * x", "2 * x"), "got the same text"),
        (fault("x", "2 * x", "3 * x", "test_of_six"), "::test_of_six, got none"),
    ],
)
def test_what_is_wrong_with_a_fault_is_said(tree, mutant, text):
    assert text in mutant.problem(tree)


def test_faults_without_a_name_of_their_own_are_refused(tmp_path):
    row = '[[mutant]]\nname = "x"\nfile = "f"\nold = "o"\nnew = "n"\ntest = "t"\n'
    (tmp_path / "a.toml").write_text(row + row)
    with pytest.raises(ValueError, match=r"expected a name of its own .* in a.toml"):
        read_mutants(tmp_path)
    (tmp_path / "a.toml").write_text(row.replace("test =", "tets ="))
    with pytest.raises(ValueError, match="the keys file, name, new, old, test"):
        read_mutants(tmp_path)
