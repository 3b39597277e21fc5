"""What the six distributions and the workshop's texts promise about each other."""

import ast
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
SOURCES = sorted(
    path
    for folder in ("packages", "testing", "integration", "docs")
    for path in (ROOT / folder).rglob("*.py")
)
TEXTS = ["README.md", "CONTRIBUTING.md", "docs/testing.md", ".ci/run"]

each_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)


def project(package: Path) -> dict:
    return tomllib.loads((package / "pyproject.toml").read_text())["project"]


def sessions() -> set[str]:
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {
        f.name for f in functions if any("nox.session" in ast.unparse(d) for d in f.decorator_list)
    }


def commands(text: str) -> set[str]:
    """Sessions that a text tells its reader to run."""
    lines = re.findall(r"\bnox -s ((?:[a-z]+ ?)+)", (ROOT / text).read_text())
    return {name for line in lines for name in line.split()}


def test_there_are_six_packages():
    assert len(PACKAGES) == 6


@each_package
def test_the_changelog_begins_with_what_is_new_and_the_version(package):
    headings = re.findall(r"^## (\S+)", (package / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = headings[1:] if headings[0] == "Unreleased" else headings
    assert released[0] == project(package)["version"]


@each_package
def test_the_installed_version_is_that_of_the_working_tree(package):
    assert version(project(package)["name"]) == project(package)["version"]


@each_package
def test_siblings_are_bounded_to_their_present_minor_version(package):
    versions = {project(other)["name"]: project(other)["version"] for other in PACKAGES}
    for requirement in project(package)["dependencies"]:
        name = re.split(r"[><=]", requirement)[0]
        if name in versions:
            minor = int(versions[name].split(".")[1])
            assert requirement == f"{name}>=0.{minor},<0.{minor + 1}"


@each_package
def test_names_follow_the_folder(package):
    assert project(package)["name"] == "sshsdp-" + package.name.replace("_", "-")
    assert (package / "src" / f"sshsdp_{package.name}" / "py.typed").is_file()


@each_package
def test_the_licence_is_the_common_one(package):
    assert (package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert project(package)["license"] == "Apache-2.0"


@each_package
def test_python_and_torch_have_lower_bounds_only(package):
    assert project(package)["requires-python"] == ">=3.11"
    torch = [entry for entry in project(package)["dependencies"] if entry.startswith("torch")]
    assert torch in ([], ["torch>=2.11"])


@each_package
def test_the_readme_shows_a_runnable_example(package):
    assert "```python\n" in (package / "README.md").read_text()


@each_package
def test_tests_and_benchmarks_exist(package):
    assert list(package.glob("tests/**/test_*.py"))
    assert list(package.glob("benchmarks/bench_*.py"))


@pytest.mark.parametrize("text", TEXTS)
def test_every_session_that_a_text_names_exists(text):
    assert commands(text)
    assert commands(text) <= sessions()


def test_the_guards_run_the_readmes_test_command_and_the_rest():
    assert {"train", "tests"} <= commands("README.md")
    guards = {"tests", "lint", "types", "layers", "wheels", "integration", "docs"}
    assert commands(".ci/run") == guards


@pytest.mark.parametrize("text", ["CONTRIBUTING.md", "docs/testing.md"])
def test_every_session_is_explained(text):
    assert commands(text) == sessions()


def test_no_file_grows_beyond_400_lines():
    lengths = {path: len(path.read_text().splitlines()) for path in SOURCES}
    assert {path: length for path, length in lengths.items() if length > 400} == {}


@pytest.mark.parametrize("text", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.stem)
def test_tests_that_a_page_names_exist(text):
    for path, name in re.findall(r"`([\w/]+\.py)::(\w+)", text.read_text()):
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


@pytest.mark.parametrize("page", ["bugs_of_others", "restrictions", "testing"])
def test_pages_of_guards_name_tests(page):
    assert re.search(r"\.py::test_", (ROOT / "docs" / f"{page}.md").read_text())


@pytest.mark.parametrize(
    "readme",
    ["README.md", *(f"packages/{path.name}/README.md" for path in ROOT.glob("packages/*"))],
)
def test_a_readme_installs_from_the_checkout_all_that_a_package_needs_of_ours(readme):
    text = (ROOT / readme).read_text().replace("\\\n", "")
    (line,) = re.findall(r"^pip install -c constraints/cpu.txt (.*)$", text, re.M)
    given = {folder.removeprefix("packages/") for folder in line.split()}
    needed = {"fsdp_runtime" if readme == "README.md" else Path(readme).parent.name}
    for _ in range(6):
        for name in sorted(needed):
            required = tomllib.loads((ROOT / f"packages/{name}/pyproject.toml").read_text())
            entries = required["project"].get("dependencies", [])
            found = re.findall(r"sshsdp-([a-z-]+)", " ".join(entries))
            needed |= {each.replace("-", "_") for each in found}
    assert given == needed
