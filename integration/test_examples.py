"""What the documentation prints below each example is what the example prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "integration" / "examples").glob("*.py"))
PAGE = ROOT / "docs" / "examples.md"
PRINTED = re.compile(
    r"^```shell\npython (integration/examples/\w+\.py)\n```$.*?^```text\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def test_every_example_is_documented():
    documented = [ROOT / path for path, _ in PRINTED.findall(PAGE.read_text())]
    assert sorted(documented) == EXAMPLES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_prints_what_the_page_shows(example):
    shown = {ROOT / path: text for path, text in PRINTED.findall(PAGE.read_text())}
    command = [sys.executable, "-W", "error", str(example)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown[example]
