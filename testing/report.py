"""What a comparison found: rows with goals, as JSON and as a table."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from testing.bench_row import Row

MET, MISSED = "[green]met[/]", "[bold red]MISSED[/]"


def document(benchmark: str, rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON document of a run."""
    return {
        "benchmark": benchmark,
        "machine": machine(),
        "versions": versions(),
        "rows": [asdict(row) for row in rows],
    }


def table(benchmark: str, rows: Sequence[Row]) -> Table:
    """The rows for a reader; what misses its goal is marked."""
    result = Table(title=benchmark, title_justify="left")
    result.add_column("row", no_wrap=True)
    result.add_column("value", justify="right", no_wrap=True)
    result.add_column("goal", justify="right", no_wrap=True)
    result.add_column("")
    for row in rows:
        sign = "≤" if row.better == "lower" else "≥"
        goal = "" if row.goal is None else f"{sign} {row.goal:.4g}"
        verdict = "" if row.goal is None else MISSED if row.missed else MET
        result.add_row(row.name, f"{row.value:.4g} {row.unit}".rstrip(), goal, verdict)
    return result


def machine() -> dict[str, Any]:
    """Processor, usable cores, memory and kernel of this machine."""
    return {
        "cpu": _cpu_model(),
        "cores": _cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Versions of Python, torch and the packages of this project that are installed."""
    ours = {
        name: distribution.version
        for distribution in importlib.metadata.distributions()
        if (name := distribution.metadata["Name"]).startswith("sshsdp-")
    }
    return {"python": platform.python_version(), "torch": torch.__version__} | dict(
        sorted(ours.items())
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        match = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        if match:
            return match[1].strip()
    return platform.processor() or platform.machine()
