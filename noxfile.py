"""Sessions of the workshop: `nox -l` lists them, CONTRIBUTING.md says when to use which."""

import os
import shutil
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "venv"  # pip obeys the constraints; other installers may not
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "layers", "tests"]

ROOT = Path(__file__).parent.resolve()
CONSTRAINTS = (ROOT / "constraints" / "cpu.txt").as_uri()  # a URI: pip splits paths at spaces
WHEELHOUSE = ROOT / "dist"
RESULTS = ROOT / ".benchmarks"
PREFIX = "sshsdp-"
# Extras that need no GPU.
TEST_EXTRAS = ("explain", "huggingface", "plots", "tensorboard", "tokenizers")
TEST_TOOLS = ("hypothesis", "numpy", "pytest", "pytest-benchmark")
BUILD_TOOLS = ("editables", "hatchling")
UNUSED = "DEP002=sshsdp-mxfp"  # fsdp_runtime installs the whole before it imports the whole
BENCH_OPTIONS = ("-o", "python_files=bench_*.py")


@dataclass(frozen=True)
class Package:
    """What the sessions need to know of one folder under packages/."""

    name: str
    siblings: tuple[str, ...]
    third_party: tuple[str, ...]
    extras: Mapping[str, tuple[str, ...]]
    oracles: tuple[str, ...]  # others' code that its tests compare with; never imported by src
    slow_oracles: tuple[str, ...]  # the same of tests marked `full`

    @property
    def folder(self) -> str:
        """Path relative to the root."""
        return f"packages/{self.name}"

    @property
    def module(self) -> str:
        """Import name."""
        return f"sshsdp_{self.name}"

    @property
    def test_extras(self) -> tuple[str, ...]:
        """Extras that its tests exercise."""
        return tuple(extra for extra in TEST_EXTRAS if extra in self.extras)


@cache
def packages() -> dict[str, Package]:
    """All packages in dependency order, read from their pyproject.toml."""
    found = {path.parent.name: _read(path) for path in ROOT.glob("packages/*/pyproject.toml")}
    graph = {name: sorted(found[name].siblings) for name in sorted(found)}
    return {name: found[name] for name in TopologicalSorter(graph).static_order()}


def _read(path: Path) -> Package:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    project = content["project"]
    required = project.get("dependencies", [])
    groups = content.get("dependency-groups", {})
    return Package(
        name=path.parent.name,
        siblings=tuple(
            entry.removeprefix(PREFIX).split(">")[0].replace("-", "_")
            for entry in required
            if entry.startswith(PREFIX)
        ),
        third_party=tuple(entry for entry in required if not entry.startswith(PREFIX)),
        extras={k: tuple(v) for k, v in project.get("optional-dependencies", {}).items()},
        oracles=tuple(groups.get("oracles", ())),
        slow_oracles=tuple(groups.get("slow-oracles", ())),
    )


def closure(name: str) -> list[Package]:
    """The package and every sibling it reaches, in dependency order."""
    wanted, queue = {name}, [name]
    while queue:
        new = set(packages()[queue.pop()].siblings) - wanted
        wanted |= new
        queue.extend(new)
    return [package for package in packages().values() if package.name in wanted]


def selected(session: nox.Session) -> list[Package]:
    """The packages named after `--`, or all."""
    unknown = sorted(set(session.posargs) - set(packages()))
    if unknown:
        session.error(f"expected packages of {', '.join(packages())}; got {', '.join(unknown)}")
    return [p for p in packages().values() if not session.posargs or p.name in session.posargs]


def install(session: nox.Session, *arguments: str) -> None:
    """Install under constraints/cpu.txt, kept beside whatever the caller's pip is told."""
    for variable in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"):  # newer pips split the two
        session.env[variable] = " ".join(filter(None, (os.environ.get(variable), CONSTRAINTS)))
    session.install(*arguments)


def install_editable(
    session: nox.Session, chosen: Iterable[Package], extras_of: Iterable[Package] = ()
) -> None:
    """Install the packages from the working tree, some of them with their testable extras."""
    with_extras = {package.name for package in extras_of}
    arguments: list[str] = []
    for package in chosen:
        extras = package.test_extras if package.name in with_extras else ()
        arguments += ["-e", package.folder + (f"[{','.join(extras)}]" if extras else "")]
    install(session, "--no-build-isolation", *arguments)  # BUILD_TOOLS are already there


def install_all(session: nox.Session) -> None:
    """Install every package, its testable extras, its oracles and the test tools."""
    oracles = sorted({oracle for package in packages().values() for oracle in package.oracles})
    install(session, *TEST_TOOLS, *BUILD_TOOLS, *oracles)
    install_editable(session, packages().values(), packages().values())


def uninstall_ours(session: nox.Session) -> None:
    """Remove every package of ours, so that the next one can't lean on it."""
    ours = [PREFIX + name.replace("_", "-") for name in packages()]
    session.run("python", "-m", "pip", "uninstall", "-qq", "-y", *ours, silent=True)


@nox.session
def train(session: nox.Session) -> None:
    """Install everything and train a language model on sharded CPU ranks; options after `--`."""
    session.log("the first run downloads about 250 MB and takes 1.1 GB of disk (torch for CPUs)")
    install(session, *BUILD_TOOLS)
    siblings = [part for p in closure("fsdp_runtime")[:-1] for part in ("-e", p.folder)]
    runtime = packages()["fsdp_runtime"].folder
    install(session, "--no-build-isolation", *siblings, "-e", f"{runtime}[plots]")
    # On Ctrl-C the trainer finishes its step and saves; nox must wait for that.
    session.run("sshsdp", "train", *session.posargs, interrupt_timeout=120, terminate_timeout=10)


@nox.session
def tests(session: nox.Session) -> None:
    """Test each package with nothing of ours installed but what it declares; `-- NAME ...`."""
    chosen = selected(session)
    install(session, *TEST_TOOLS, *BUILD_TOOLS)
    for package in chosen:
        uninstall_ours(session)
        if package.oracles:
            install(session, *package.oracles)
        install_editable(session, closure(package.name), [package])
        session.run("python", "-m", "pytest", f"{package.folder}/tests")
        benchmarks = f"{package.folder}/benchmarks"
        session.run("python", "-m", "pytest", benchmarks, *BENCH_OPTIONS, "--benchmark-disable")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting, spelling and project metadata."""
    install(session, "ruff", "typos", "validate-pyproject[all]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("typos", ".")
    projects = [f"{package.folder}/pyproject.toml" for package in packages().values()]
    offline = {"VALIDATE_PYPROJECT_NO_NETWORK": "1"}
    session.run("validate-pyproject", "pyproject.toml", *projects, env=offline)


@nox.session
def types(session: nox.Session) -> None:
    """Type-check the packages, the test support and this file under mypy --strict."""
    install(session, "mypy", "nox", *TEST_TOOLS, *BUILD_TOOLS)
    install_editable(session, packages().values(), packages().values())
    sources = [f"{package.folder}/src" for package in packages().values()]
    session.run("python", "-m", "mypy", *sources, "testing", "noxfile.py", "conftest.py")


@nox.session
def layers(session: nox.Session) -> None:
    """Check who imports whom, and that each package declares what it imports."""
    install(session, "import-linter", "deptry", *BUILD_TOOLS)
    folders = [part for package in packages().values() for part in ("-e", package.folder)]
    install(session, "--no-build-isolation", "--no-deps", *folders)
    session.run("lint-imports", "--no-cache")
    for package in packages().values():
        with session.chdir(package.folder):
            session.run("deptry", "src", "--per-rule-ignores", UNUSED)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build sdists and wheels, look inside, and import each alone with only its closure."""
    shutil.rmtree(WHEELHOUSE, ignore_errors=True)
    install(session, "build", *BUILD_TOOLS)
    for package in packages().values():
        arguments = ("--no-isolation", "--outdir", str(WHEELHOUSE), package.folder)
        session.run("python", "-m", "build", *arguments, silent=True)
    session.run("python", "-m", "testing.wheelhouse", str(WHEELHOUSE))
    # torch is installed once; then each package comes in alone from the wheelhouse, and
    # `pip check` compares what it asks for with what is there.
    install(session, *sorted({entry for p in packages().values() for entry in p.third_party}))
    for package in packages().values():
        uninstall_ours(session)
        names = [PREFIX + part.name.replace("_", "-") for part in closure(package.name)]
        offline = ("--no-index", "--no-deps", "--find-links", str(WHEELHOUSE))
        install(session, *offline, *names)
        session.run("python", "-m", "pip", "check")
        session.run("python", "-I", "testing/public_face.py", package.module)


@nox.session
def integration(session: nox.Session) -> None:
    """Test the packages together, and run every example of every README."""
    install_all(session)
    session.run("python", "-m", "pytest", *(session.posargs or ["integration"]))


@nox.session
def bench(session: nox.Session) -> None:
    """Time host-side costs of every package, or compare with `-- NAME --json FILE`."""
    install_all(session)
    if session.posargs:
        session.run("python", "-m", "testing.bench", *session.posargs)
        return
    RESULTS.mkdir(exist_ok=True)
    for package in packages().values():
        report = f"--benchmark-json={RESULTS / package.name}.json"
        target = f"{package.folder}/benchmarks"
        session.run("python", "-m", "pytest", target, *BENCH_OPTIONS, report)


@nox.session
def gpu(session: nox.Session) -> None:
    """Run what needs CUDA; a missing device is an error. Works with --no-venv --no-install."""
    install_all(session)
    # Where nothing may be installed the sources are found by path.
    path = [str(ROOT / package.folder / "src") for package in packages().values()]
    path += filter(None, [os.environ.get("PYTHONPATH")])
    session.run(
        *("python", "-m", "pytest", "-m", "gpu", "--require-gpu", "packages", "integration"),
        *session.posargs,
        env={"PYTHONPATH": os.pathsep.join(path)},
    )


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation with warnings fatal, and run its examples."""
    install(session, "furo", "myst-parser", "sphinx", *BUILD_TOOLS)
    install_editable(session, closure("shardchain"))
    for builder in ("html", "doctest"):
        output = f"docs/_build/{builder}"
        session.run("python", "-m", "sphinx", "-W", "-E", "-q", "-b", builder, "docs", output)


@nox.session
def mutants(session: nox.Session) -> None:
    """Plant faults one by one into a copy; each must fail its test. `-- WORD ...` picks some."""
    install_all(session)
    session.run("python", "-m", "testing.mutants", *session.posargs)


@nox.session
def full(session: nox.Session) -> None:
    """Run every test of every package and of the integration, the slow grid included."""
    install_all(session)
    install(
        session, *(oracle for package in packages().values() for oracle in package.slow_oracles)
    )
    session.run("python", "-m", "pytest", "--full", "packages", "integration", *session.posargs)
