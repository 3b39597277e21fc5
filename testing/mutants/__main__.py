"""`python -m testing.mutants [WORD ...]`: plants faults one by one; all must fail their test."""

import sys
import tempfile
from pathlib import Path

from testing.mutants.mutant import read_mutants
from testing.mutants.session import run_mutants, table

ROOT = Path(__file__).parents[2]


def main(words: list[str]) -> int:
    """Run the faults whose name, file or test has one of `words`, or all; the exit status."""
    chosen = [
        mutant
        for mutant in read_mutants()
        if not words or any(w in f"{mutant.name} {mutant.file} {mutant.test}" for w in words)
    ]
    if not chosen:
        sys.stderr.write(f"expected words that name a fault, got {words}\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        results = run_mutants(chosen, ROOT, Path(folder) / "tree", sys.stderr)
    sys.stdout.write(table(results))
    return 0 if all(result.noticed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
