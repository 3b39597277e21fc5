"""A fault as data: what is changed where, and which test must notice."""

import ast
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

FAULTS = Path(__file__).parent / "faults"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault.

    Attributes:
        name: what it does wrong.
        file: changed source, relative to the root of the tree.
        old: text that occurs once in it.
        new: what replaces that text.
        test: node that must fail, as pytest names it; parameters may be left out.
    """

    name: str
    file: str
    old: str
    new: str
    test: str

    @property
    def package(self) -> str:
        """Folder of the package that it is planted in."""
        return Path(self.file).parts[1]

    def problem(self, root: Path) -> str | None:
        """Why it can't be planted into the tree at `root`, or None."""
        source = root / self.file
        if not source.is_file():
            return f"expected a file {self.file}, got none; the fault moved or is to be dropped"
        count = source.read_text(encoding="utf-8").count(self.old)
        if count != 1:
            return (
                f"expected {self.old!r} once in {self.file}, got it {count} times; follow the "
                "code, or quote more of it"
            )
        if self.old == self.new:
            return f"expected a change of {self.file}, got the same text"
        file, _, rest = self.test.partition("::")
        function = rest.partition("[")[0]
        if not (root / file).is_file() or function not in _functions(root / file):
            return (
                f"expected a test {file}::{function}, got none; name the one that shows the fault"
            )
        return None

    def plant(self, root: Path) -> str:
        """Change the file in the tree at `root`; its text before."""
        source = root / self.file
        before = source.read_text(encoding="utf-8")
        source.write_text(before.replace(self.old, self.new), encoding="utf-8")
        return before


def read_mutants(folder: Path = FAULTS) -> list[Mutant]:
    """All faults, file by file, in the order in which they are written.

    Raises:
        ValueError: a fault without one of its fields, with another one, or with another's name.
    """
    expected = {each.name for each in fields(Mutant)}
    mutants: dict[str, Mutant] = {}
    for file in sorted(folder.glob("*.toml")):
        for row in tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]:
            if set(row) != expected or row["name"] in mutants:
                raise ValueError(
                    f"expected a name of its own and the keys {', '.join(sorted(expected))} in "
                    f"{file.name}, got {row}"
                )
            mutants[row["name"]] = Mutant(**row)
    return list(mutants.values())


def _functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
