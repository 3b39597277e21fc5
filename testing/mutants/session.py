"""One session: the tests pass as the tree is, and each fails with its fault."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from testing.mutants.mutant import Mutant
from testing.mutants.tree import Tree

_PASSED, _FAILED = 0, 1  # exit statuses of pytest; others say that no test was run


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a fault.

    Attributes:
        mutant: the fault.
        outcome: ``noticed``, or why it was not.
        seconds: that its test took.
    """

    mutant: Mutant
    outcome: str
    seconds: float = 0.0

    @property
    def noticed(self) -> bool:
        """Whether its test failed."""
        return self.outcome == "noticed"


def run_mutants(
    mutants: Sequence[Mutant], source: Path, copy: Path, progress: TextIO
) -> list[Result]:
    """Plant faults one by one into a copy of a tree, and run the test of each.

    Args:
        mutants: the faults.
        source: root of the tree; stays as it is.
        copy: where the copy goes.
        progress: gets a line per fault, and what a test said that did not do as it should.

    Returns:
        A result per fault, in order.

    Raises:
        RuntimeError: a test fails without any fault, so that its failing would mean nothing.
    """
    tree = Tree(source, copy)
    tree.check_imports()
    usable = [mutant for mutant in mutants if mutant.problem(source) is None]
    tests = list(dict.fromkeys(mutant.test for mutant in usable))
    if tests:
        progress.write(f"{len(tests)} tests of {len(usable)} faults, without any fault\n")
        done = tree.test(*tests)
        if done is None or done.returncode != _PASSED:
            text = "they did not end" if done is None else done.stdout[-4000:]
            raise RuntimeError(f"expected tests that pass without a fault, got: {text}")
    results = []
    for mutant in mutants:
        results.append(_run(mutant, tree, progress))
        result = results[-1]
        progress.write(f"{result.outcome} ({result.seconds:.1f} s): {mutant.name}\n")
        progress.flush()
    return results


def _run(mutant: Mutant, tree: Tree, progress: TextIO) -> Result:
    if problem := mutant.problem(tree.root):
        return Result(mutant, problem)
    began = time.perf_counter()
    before = mutant.plant(tree.root)
    try:
        done = tree.test(mutant.test)
    finally:
        (tree.root / mutant.file).write_text(before, encoding="utf-8")
    seconds = time.perf_counter() - began
    if done is None:
        return Result(mutant, "did not end", seconds)
    if done.returncode == _FAILED:
        return Result(mutant, "noticed", seconds)
    if done.returncode == _PASSED:
        return Result(mutant, "SURVIVED", seconds)
    progress.write(done.stdout[-2000:] + done.stderr[-2000:])
    return Result(mutant, f"no test was run (pytest ended with {done.returncode})", seconds)


def table(results: Sequence[Result]) -> str:
    """A line per fault by package, and the count."""
    lines = []
    for result in results:
        mutant = result.mutant
        lines.append(
            f"{mutant.package:<13} {result.outcome:<9} {result.seconds:6.1f} s  {mutant.name}"
        )
        if not result.noticed:
            lines.append(f"{'':<34}{mutant.file}, {mutant.test}")
    noticed = sum(result.noticed for result in results)
    return "\n".join([*lines, f"{noticed} of {len(results)} faults noticed"]) + "\n"
