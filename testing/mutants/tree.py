"""A copy of the tree in which faults are planted, so that the tree itself stays as it is."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PARTS = ("packages", "testing", "integration", "conftest.py", "pyproject.toml")
_IGNORED = shutil.ignore_patterns("__pycache__", ".*", "runs", "dist")
_TIMEOUT = (
    300.0  # seconds per test; a fault that stops a rank ends by the bounded waits of its test
)
_WHERE = """
import importlib.util, pathlib, sys
root = pathlib.Path(sys.argv[1])
for name in sys.argv[2:]:
    found = importlib.util.find_spec(name).origin
    assert root in pathlib.Path(found).parents, f"expected {name} from {root}, got {found}"
"""


class Tree:
    """The copy.

    Args:
        source: root of the tree.
        root: where the copy goes; nothing is there yet.
    """

    def __init__(self, source: Path, root: Path) -> None:
        self.root = root.resolve()
        self.root.mkdir(parents=True)
        for part in PARTS:
            if (source / part).is_dir():
                shutil.copytree(source / part, self.root / part, ignore=_IGNORED)
            elif (source / part).is_file():
                shutil.copy2(source / part, self.root / part)

    def check_imports(self) -> None:
        """Make sure that the copy is what tests import, whatever is installed.

        Raises:
            subprocess.CalledProcessError: another place comes first.
        """
        names = sorted(path.name for path in self.root.glob("packages/*/src/*") if path.is_dir())
        command = [sys.executable, "-c", _WHERE, str(self.root), *names]
        subprocess.run(command, cwd=self.root, env=self._environment(), check=True)

    def test(self, *nodes: str) -> subprocess.CompletedProcess[str] | None:
        """Run tests; None if they did not end."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *nodes]
        try:
            return subprocess.run(
                command,
                cwd=self.root,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT * len(nodes),
            )
        except subprocess.TimeoutExpired:
            return None

    def _environment(self) -> dict[str, str]:
        sources = [str(path) for path in sorted(self.root.glob("packages/*/src"))]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*sources, str(self.root)]),
            # A file that changes twice within a second may be taken for its own older bytecode.
            "PYTHONDONTWRITEBYTECODE": "1",
            "CI": "1",
        }
