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

from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.reports import StepReport, ValidationReport


class Metrics:
    """Appends to the file at `path`.

    Args:
        path: made when absent.
        start: the steps done so far; rows of later steps, which a stopped run had made after its
            last checkpoint, are dropped.

    Raises:
        InputError: the file that is there is damaged; it stays as it is.
    """

    def __init__(self, path: Path, *, start: int = 0) -> None:
        kept = [row for row in read_metrics(path) if row["step"] <= start]
        # Beside the file, which stays as it was should this be interrupted or the disk be full.
        draft = path.with_name(f".{path.name}.draft")
        with draft.open("w", encoding="utf-8") as file:
            file.writelines(map(_line, kept))
        draft.replace(path)
        self._file = path.open("a", encoding="utf-8")

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
        self._file.write(_line(row))
        self._file.flush()


def _line(row: dict[str, Any]) -> str:
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
    return json.dumps(finite, allow_nan=False) + "\n"


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a metrics file, if there is one; a torn last line is left out.

    Raises:
        InputError: another line is no row.
    """
    if not path.exists():
        return
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, start=1):
        row = _row(line)
        if row is not None:
            yield row
        elif number < len(lines):
            raise InputError(
                f"expected a row of JSON with kind and step in line {number} of {path}, got "
                f"{line[:40]!r}: the file is damaged; delete that line, or restore the file"
            )


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:  # also of text that is no UTF-8
        return None
    known = isinstance(row, dict) and type(row.get("step")) is int and "kind" in row
    return row if known else None
