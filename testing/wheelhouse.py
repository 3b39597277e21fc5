"""Looks inside built distributions: ``python -m testing.wheelhouse FOLDER``."""

import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

ALLOWED_SUFFIXES = {".py", ".typed"}
SDIST_TOP = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}
SDIST_FOLDERS = {"src", "tests"}


def check_wheel(wheel: Path) -> list[str]:
    """Say what is wrong with one wheel: only typed, pure Python and its licence belong in it."""
    problems: list[str] = []
    distribution = wheel.name.split("-")[0]
    if not wheel.name.endswith("-py3-none-any.whl"):
        problems.append("expected a pure wheel (py3-none-any)")
    with zipfile.ZipFile(wheel) as archive:
        names = [PurePosixPath(name) for name in archive.namelist()]
    metadata = [name for name in names if name.parts[0].endswith(".dist-info")]
    modules = [name for name in names if name not in metadata]
    if not any(name.name == "LICENSE" for name in metadata):
        problems.append("expected a LICENSE, got none")
    if PurePosixPath(distribution, "py.typed") not in modules:
        problems.append(f"expected {distribution}/py.typed, got none")
    for name in modules:
        if name.parts[0] != distribution:
            problems.append(f"expected files under {distribution}/ only, got {name}")
        elif name.suffix not in ALLOWED_SUFFIXES:
            problems.append(f"expected Python source only, got {name}")
        elif "tests" in name.parts or name.name.startswith("test_"):
            problems.append(f"expected no tests, got {name}")
    return problems


def check_sdist(sdist: Path) -> list[str]:
    """Say what is wrong with one sdist: sources, tests and the texts belong in it, no more."""
    with tarfile.open(sdist) as archive:
        names = [PurePosixPath(*PurePosixPath(name).parts[1:]) for name in archive.getnames()]
    tops = {name.parts[0] for name in names if name.parts}
    missing = sorted((SDIST_TOP - {".gitignore"} | {"src"}) - tops)
    surplus = sorted(tops - SDIST_TOP - SDIST_FOLDERS)
    return [f"expected {name}, got none" for name in missing] + [
        f"expected no {name}, got one" for name in surplus
    ]


def main(folder: Path) -> int:
    """Check every distribution in a folder; the exit status is 1 where one has a problem."""
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    problems = [f"{wheel.name}: {text}" for wheel in wheels for text in check_wheel(wheel)]
    problems += [f"{sdist.name}: {text}" for sdist in sdists for text in check_sdist(sdist)]
    if not wheels or len(wheels) != len(sdists):
        problems.append(f"expected as many wheels as sdists, got {len(wheels)} and {len(sdists)}")
    for problem in problems:
        sys.stderr.write(problem + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
