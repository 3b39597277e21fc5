"""The page for users of FSDP2 has every name of the installed one, and its programs agree."""

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from testing.ranks import run_ranks
from torch import nn
from torch.distributed import fsdp
from torch.distributed.checkpoint import state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor

from sshsdp_fsdp_runtime import fully_shard

PAGE = Path(__file__).parents[1] / "docs" / "from_fsdp2.md"
SECTIONS = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
SECOND = [name for name in fsdp.__all__ if hasattr(fsdp._fully_shard, name)]
FIRST = [name for name in fsdp.__all__ if name not in SECOND]


def listed(section):
    """Names in the first column of a section's table."""
    (text,) = (part for part in SECTIONS if part.startswith(section))
    return re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)


def parameters(function):
    return list(inspect.signature(function).parameters)


def methods(kind):
    return [name for name, value in vars(kind).items() if callable(value) and name[0] != "_"]


def fields(*kinds):
    return [f"{kind.__name__}.{f.name}" for kind in kinds for f in dataclasses.fields(kind)]


def functions(module):
    return [name for name in module.__all__ if inspect.isfunction(getattr(module, name))]


INSTALLED = {
    "`fully_shard`": parameters(fsdp.fully_shard),
    "`MixedPrecisionPolicy`": fields(
        fsdp.MixedPrecisionPolicy, fsdp.OffloadPolicy, fsdp.CPUOffloadPolicy
    ),
    "`FSDPModule`": methods(fsdp.FSDPModule),
    "Functions and handles": SECOND,
    "FSDP1": FIRST,
    "State and checkpoints": [*functions(state_dict), *fields(state_dict.StateDictOptions)],
}


@pytest.mark.parametrize("section", INSTALLED)
def test_every_name_and_parameter_of_the_installed_fsdp2_is_in_the_page(section):
    names = listed(section)
    assert sorted(names) == sorted(set(names))
    assert set(INSTALLED[section]) - set(names) == set(), f"add rows to {PAGE.name}"
    gone = set(names) - set(INSTALLED[section])
    older = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)  # than the page
    assert older or gone == set(), f"torch has dropped them: remove their rows from {PAGE.name}"


def refuse(rank):
    dist.init_process_group("gloo", store=rank.store, rank=0, world_size=1)
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(distribute_tensor(layer.weight, init_device_mesh("cpu", (1,))))
    with pytest.raises(TypeError, match=r"expected nn\.Parameter, got DTensor for 'weight'"):
        fully_shard(layer)
    dist.destroy_process_group()


def test_a_model_that_holds_dtensors_is_refused():
    run_ranks(refuse, 1)


def printed(program, launcher, folder):
    """Losses by rank, and the norm, of a program of the page."""
    file = folder / "program.py"
    file.write_text(program)
    command = [sys.executable, "-W", "error", *launcher, file.name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # Lines of two ranks may run into each other.
    found = re.findall(r"loss (\d+\.\d{3}), norm (\d+\.\d{3})", done.stdout)
    losses, norms = zip(*found, strict=True)
    assert len(set(norms)) == 1
    return sorted(map(float, losses)), float(norms[0])


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_programs_before_and_after_print_the_same(ranks, tmp_path):
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    before, after = (printed(p, torchrun if ranks > 1 else [], tmp_path) for p in programs)
    assert len(after[0]) == ranks
    assert after[0] == pytest.approx(before[0], abs=2e-3)
    assert after[1] == pytest.approx(before[1], abs=2e-3)
