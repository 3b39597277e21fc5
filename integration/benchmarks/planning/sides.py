"""The costs, each measured in a process of its own."""

import copy
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from testing.bench_program import ROOT
from testing.ranks import Rank
from torch import nn

from sshsdp_shardchain import Degrees, Fragment, Layout, Level

MODELS = ROOT / "integration/reproduce/models"
LEVELS = (Level.ZERO3, Level.ZERO2, Level.ZERO1)
WIDTH = 8  # of the tiny layers: arithmetic is next to nothing


def view(rank: Rank, members: int, ranks: int) -> dict[str, list[float]]:
    """Seconds, and bytes beyond the caller's list, of the layout and one rank's fragments."""
    del rank
    named = [(f"layers.{i // 10}.experts.{i % 10}", 1_000_000 + i % 7) for i in range(members)]
    before = _restart_peak()
    begin = time.perf_counter()
    layout = Layout.pack(named, Degrees(8, 8, ranks), ranks, align=32)
    held: list[list[Fragment]] = [
        list(layout.overlapping(level, ranks // 2 + 1)) for level in LEVELS
    ]
    seconds = time.perf_counter() - begin
    grown = _peak() - before
    return {
        "seconds": [seconds],
        "bytes": [float(grown)],
        "held": [float(len(fragments)) for fragments in held],
    }


def trillion(rank: Rank, model: str, nodes: int, degrees: str) -> dict[str, list[float]]:
    """Seconds of the whole command, the start of Python included."""
    del rank
    command = [sys.executable, "-m", "sshsdp_fsdp_runtime.trainer", "plan"]
    command += [
        str(MODELS / f"{model}.toml"),
        "--nodes",
        str(nodes),
        "--ranks-per-node",
        "8",
        "--degrees",
        degrees,
    ]
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return {"seconds": [time.perf_counter() - begin], "written": [float(len(done.stdout))]}


def hooks(rank: Rank, groups: int, passes: int) -> dict[str, list[float]]:
    """Seconds of forward and backward, sharded and plain by turns, and the number of groups."""
    from sshsdp_fsdp_runtime import fully_shard  # takes seconds that the other costs don't need

    del rank
    torch.manual_seed(0)
    plain = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(groups)))
    sharded = fully_shard(copy.deepcopy(plain), groups=["*"])
    x = torch.randn(2, WIDTH)
    answer: dict[str, list[float]] = {"plain": [], "sharded": [], "groups": [float(groups)]}
    for turn in range(passes + passes // 10):
        for name, module in (("plain", plain), ("sharded", sharded)):
            seconds = _timed(lambda module=module: module(x).sum().backward())  # type: ignore[misc]
            if turn >= passes // 10:  # the first ones warm up
                answer[name].append(seconds)
    sharded.close()
    return answer


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _restart_peak() -> int:
    """Let the peak of this process's memory start again from where it is now; bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """The largest resident size since `_restart_peak`, in bytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
