"""Finds and loads benchmark modules by path."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


class UnknownBenchmarkError(LookupError):
    """No benchmark has the name, or more than one has it."""


def find(root: Path, name: str) -> Path:
    """Path of the benchmark `name`: a module or package in a ``benchmarks`` folder below `root`.

    Raises:
        UnknownBenchmarkError: lists the benchmarks that exist.
    """
    known = available(root)
    matches = [path for path in known if _name(path) == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        places = ", ".join(str(path.relative_to(root)) for path in matches)
        raise UnknownBenchmarkError(f"{name!r} is ambiguous: {places}; rename all but one")
    names = ", ".join(sorted({_name(path) for path in known})) or "none"
    raise UnknownBenchmarkError(f"expected the name of a benchmark ({names}), got {name!r}")


def available(root: Path) -> list[Path]:
    """All comparisons below `root`; pytest-benchmark's ``bench_*.py`` files are none."""
    folders = [*sorted(root.glob("packages/*/benchmarks")), root / "integration/benchmarks"]
    paths = [
        path
        for folder in folders
        for path in [*sorted(folder.glob("*.py")), *sorted(folder.glob("*/__init__.py"))]
    ]
    return [path for path in paths if not _name(path).startswith(("_", "bench_", "conftest"))]


def load(path: Path) -> ModuleType:
    """Import the module or package at `path` under a name of its own."""
    name = f"benchmark_{_name(path)}"
    package = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=package)
    if spec is None or spec.loader is None:
        raise UnknownBenchmarkError(f"expected a Python module, got {path}")
    module = importlib.util.module_from_spec(spec)
    for stale in [known for known in sys.modules if known.startswith(f"{name}.")]:
        del sys.modules[stale]  # else a package that is loaded again lacks its modules
    sys.modules[name] = module  # relative imports and dataclasses look it up there
    spec.loader.exec_module(module)
    return module


def _name(path: Path) -> str:
    return path.parent.name if path.name == "__init__.py" else path.stem
