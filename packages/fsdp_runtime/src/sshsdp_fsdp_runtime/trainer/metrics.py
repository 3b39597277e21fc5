"""Metrics: the reports as lines of JSON.

`{"kind": "step", "step": 1, "loss": ...}` for every step and `{"kind": "validation", ...}` for
every evaluation. What is not finite is null, which JSON can say.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sshsdp_fsdp_runtime.trainer.reports import StepReport, ValidationReport


class Metrics:
    """Appends to the file at `path`.

    Args:
        path: made when absent.
        start: the steps done so far; rows of later steps, which a stopped run had made after its
            last checkpoint, are dropped.
    """

    def __init__(self, path: Path, *, start: int = 0) -> None:
        kept = [row for row in read_metrics(path) if row["step"] <= start]
        self._file = path.open("w", encoding="utf-8")
        for row in kept:
            self._write(row)

    def step(self, report: StepReport) -> None:
        """One line."""
        self._write({"kind": "step", **asdict(report)})

    def validation(self, report: ValidationReport) -> None:
        """One line."""
        self._write({"kind": "validation", **asdict(report)})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, row: dict[str, Any]) -> None:
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        self._file.write(json.dumps(finite, allow_nan=False) + "\n")
        self._file.flush()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a metrics file, if there is one; a torn last line is left out."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return
