"""The one harness for comparisons: ``python -m testing.bench NAME --json FILE``.

A benchmark is a module NAME in a ``benchmarks`` folder of a package or of ``integration``, with

- ``programs(*, quick: bool) -> Sequence[Program]``: the sides and workloads, and
- ``rows(samples: Samples) -> Sequence[Row]``: what their numbers mean.

Every side of a workload runs once per round, in fresh processes. The exit status is 0 also when
goals are missed, and not 0 when a program crashes.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from testing import report
from testing.bench_module import UnknownBenchmarkError, find, load
from testing.bench_program import ROOT, ProgramError
from testing.bench_samples import measure


def main(arguments: Sequence[str], *, root: Path = ROOT) -> int:
    """Run one comparison; returns the exit status."""
    options = _parser().parse_args(arguments)
    progress = Console(stderr=True, highlight=False)
    try:
        file = find(root, options.name)
        benchmark = load(file)
        programs = [
            program
            for program in benchmark.programs(quick=options.quick)
            if options.sides is None or program.side in options.sides.split(",")
        ]
        if not programs:
            raise UnknownBenchmarkError(
                f"no program of {options.name!r} has a side {options.sides}"
            )
        rows = benchmark.rows(measure(file, programs, progress.print))
    except (UnknownBenchmarkError, ProgramError) as error:
        progress.print(f"error: {error}", style="red", markup=False)
        return 1
    if options.json is not None:
        text = json.dumps(report.document(options.name, rows), indent=2)
        options.json.write_text(text + "\n")
    Console(highlight=False).print(report.table(options.name, rows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m testing.bench", description=__doc__.split("\n")[0])
    parser.add_argument("name", help="a benchmark: NAME.py or NAME/ in a benchmarks folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--quick", action="store_true", help="one round of few steps: a smoke test")
    parser.add_argument(
        "--sides", metavar="A,B", help="run these sides only; rows that need others are left out"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
