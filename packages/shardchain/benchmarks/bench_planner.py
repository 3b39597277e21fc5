"""Host costs of the layout planner: a layer of experts, and 10,000 members of different sizes."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from sshsdp_shardchain import Degrees, Layout, Member, plan_layout
from sshsdp_shardchain.planner.search import solve

EXPERTS = [Member(f"experts.{i // 3}.{i % 3}", 2048 * 768, 16 * 2048, 6) for i in range(384)]
LARGE = [Member(f"m{i}", 1000 + i * 7919 % 5_000_000, 1000 + i * 7919, 6) for i in range(10_000)]


def plan(members: list[Member], ranks: int) -> Layout:
    solve.cache_clear()  # equal lists are planned once
    return plan_layout(members, Degrees.for_zero3(ranks), ranks, align=32)


@pytest.mark.parametrize("ranks", [8, 1024])
def test_plan_a_layer_of_experts(benchmark: BenchmarkFixture, ranks: int) -> None:
    assert len(benchmark(plan, EXPERTS, ranks).placements) == 384


@pytest.mark.parametrize("ranks", [8, 1024])
def test_plan_10k_members(benchmark: BenchmarkFixture, ranks: int) -> None:
    assert len(benchmark(plan, LARGE, ranks).placements) == 10_000
