"""Host costs of sharding: what one forward and backward of a tiny model pays for our hooks."""

import copy

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import nn

from sshsdp_fsdp_runtime import ModelSpec, build_plan, fully_shard

BLOCKS = 8


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(BLOCKS)))


def one_pass(module: nn.Module, x: torch.Tensor) -> None:
    module(x).sum().backward()


@pytest.mark.parametrize("side", ["plain", "sharded"])
def test_forward_and_backward(benchmark: BenchmarkFixture, side: str) -> None:
    module = model()
    if side == "sharded":
        module = fully_shard(module, groups=["*"])
    x = torch.randn(4, 8)
    benchmark(one_pass, module, x)


def test_step_of_a_small_model(benchmark: BenchmarkFixture) -> None:
    module = fully_shard(model(), groups=["*"])
    one_pass(module, torch.randn(4, 8))
    benchmark(module.optimizer.step)


def test_planning_a_thousand_blocks(benchmark: BenchmarkFixture) -> None:
    with torch.device("meta"):
        block = nn.ModuleDict({"up": nn.Linear(64, 256), "down": nn.Linear(256, 64)})
        module = nn.Module()
        module.layers = nn.ModuleList(copy.deepcopy(block) for _ in range(1000))
    spec = ModelSpec.of(module)
    plan = benchmark.pedantic(build_plan, (spec, 8), rounds=3)
    benchmark.extra_info["parameters"] = sum(p.numel for p in plan.spec.parameters)
