"""One rank's view of 131,072 ranks and 1,000,000 members: time, and memory beside the names."""

import subprocess
import sys
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from sshsdp_shardchain import Degrees, Fragment, Layout, Level

RANKS = 131_072
DEGREES = Degrees(zero3=8, zero2=8, zero1=RANKS)
STATUS = Path("/proc/self/status")


def million() -> list[tuple[str, int]]:
    return [(f"layers.{i // 10}.experts.{i % 10}", 1_000_000 + i % 7) for i in range(1_000_000)]


def view(members: list[tuple[str, int]]) -> tuple[Layout, list[list[Fragment]]]:
    """The layout, and all that rank 77,777 holds of it as weights, gradients and optimizer."""
    layout = Layout.pack(members, DEGREES, RANKS, align=32)
    levels = (Level.ZERO3, Level.ZERO2, Level.ZERO1)
    return layout, [list(layout.overlapping(level, 77_777)) for level in levels]


def peak_bytes() -> int:
    """The largest resident size of this process so far."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.benchmark(min_rounds=2, max_time=0.1)
def test_view_of_1m_members(benchmark: BenchmarkFixture) -> None:
    layout, held = benchmark(view, million())
    assert len(layout.placements) == 1_000_000
    assert [len(fragments) for fragments in held] == [125_001, 125_001, 9]


@pytest.mark.skipif(not STATUS.exists(), reason="reads the peak from /proc")
@pytest.mark.benchmark(min_rounds=1, max_time=0.1)
def test_memory_of_1m_members(benchmark: BenchmarkFixture) -> None:
    def growth() -> int:
        done = subprocess.run([sys.executable, __file__], check=True, capture_output=True)
        return int(done.stdout)

    grown = benchmark(growth)
    benchmark.extra_info["MiB beyond the caller's list"] = round(grown / 2**20)
    assert grown < 2**28


if __name__ == "__main__":
    _members = million()
    _before = peak_bytes()
    _kept = view(_members)
    sys.stdout.write(str(peak_bytes() - _before))
