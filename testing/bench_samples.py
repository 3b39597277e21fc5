"""Runs all programs of a benchmark and keeps what they gave."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from testing.bench_program import Program, Run, run_program


class Samples:
    """The runs of all programs, by workload and side, in round order."""

    def __init__(self, runs: Mapping[tuple[str, str], Sequence[Run]]) -> None:
        self._runs = runs

    def has(self, workload: str, *sides: str) -> bool:
        """Whether all these sides of a workload were run."""
        return all((workload, side) in self._runs for side in sides)

    def runs(self, workload: str, side: str) -> Sequence[Run]:
        """The runs of one side, in round order."""
        return self._runs[workload, side]


def measure(file: Path, programs: Sequence[Program], progress: Callable[[str], None]) -> Samples:
    """Run all programs of the benchmark in `file`, the sides of a workload alternating.

    Odd rounds run the sides in reverse order, so that a machine that slowly changes its speed
    favours nobody.

    Args:
        file: the benchmark's module.
        programs: what to run.
        progress: is told about every run before it starts.

    Raises:
        ProgramError: as soon as one run fails.
    """
    runs: dict[tuple[str, str], list[Run]] = {}
    for workload in dict.fromkeys(program.workload for program in programs):
        sides = [program for program in programs if program.workload == workload]
        for index in range(max(program.rounds for program in sides)):
            for program in sides if index % 2 == 0 else reversed(sides):
                if index >= program.rounds:
                    continue
                progress(f"{workload}: round {index + 1}/{program.rounds} of {program.side}")
                run = run_program(file, program)
                runs.setdefault((workload, program.side), []).append(run)
    return Samples(runs)
