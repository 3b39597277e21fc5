"""Every Python example of every README runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READMES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples():
    for readme in READMES:
        text = readme.read_text()
        for fence in FENCE.finditer(text):
            line = text.count("\n", 0, fence.start(1)) + 1
            # Blank lines in front make a traceback point at the README's own line.
            script = "\n" * (line - 1) + fence.group(1)
            yield pytest.param(script, id=f"{readme.relative_to(ROOT)}:{line}")


@pytest.mark.parametrize("script", list(examples()))
def test_the_example_runs(script, tmp_path):
    file = tmp_path / "example.py"
    file.write_text(script)
    command = [sys.executable, "-W", "error", file.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_example_of_a_sharded_model_runs_on_two_ranks(tmp_path):
    fences = FENCE.findall((ROOT / "README.md").read_text())
    (script,) = (fence for fence in fences if "fully_shard" in fence)
    file = tmp_path / "script.py"
    world = 'print(f"ranks={model.plan.world}")'
    file.write_text(script.replace("model.close()", f"{world}\nmodel.close()"))
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*run, file], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # Lines may run into each other.
    assert done.stdout.count("ranks=2") == 2
    assert done.stdout.count("loss") == 2 * 3
