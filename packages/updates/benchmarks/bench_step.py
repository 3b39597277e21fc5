"""Host-side costs of a step: one fused call over flat shards, and what surrounds it.

Ratios are in ``extra_info``: both sides alternate in one process, so that a busy machine slows
them alike.
"""

import statistics
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from sshsdp_shardchain import Degrees, Layout, Level
from sshsdp_updates import AdamW, ShardedOptimizer, UpdateList, UpdateMember

NUMEL = 80_000
TENSORS = 60
ROUNDS = 15


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def flat_optimizer(numel: int = NUMEL, *, skip_nonfinite: bool = False) -> ShardedOptimizer:
    sizes = [(f"p{index}", numel) for index in range(TENSORS)]
    layout = Layout.pack(sizes, Degrees(1, 1, 1), 1, align=16)
    members = tuple(
        UpdateMember(fragment.name, torch.nn.Parameter(torch.empty(0)), fragment, (numel,))
        for fragment in layout.fragments(Level.ZERO1, 0)
    )
    weight, grad = torch.randn(layout.numel), torch.randn(layout.numel)
    lists = [UpdateList("weights", AdamW(), members, weight, grad)]
    return ShardedOptimizer(lists, skip_nonfinite=skip_nonfinite)


def torch_optimizer(numel: int = NUMEL) -> torch.optim.Optimizer:
    tensors = [torch.nn.Parameter(torch.randn(numel)) for _ in range(TENSORS)]
    for tensor in tensors:
        tensor.grad = torch.randn(numel)
    return torch.optim.AdamW(tensors, fused=True)


def ratio(ours: Callable[[], object], theirs: Callable[[], object]) -> float:
    """Return the median over rounds of time(ours) / time(theirs), taken in turns."""
    ratios = []
    for index in range(ROUNDS + 2):
        first, second = _seconds(ours), _seconds(theirs)
        if index >= 2:
            ratios.append(first / second)
    return statistics.median(ratios)


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def test_flat_step_against_torch_fused_adamw(benchmark: BenchmarkFixture) -> None:
    ours, theirs = flat_optimizer(), torch_optimizer()
    benchmark.extra_info["ratio_to_torch_fused"] = ratio(ours.step, theirs.step)
    benchmark(ours.step)


def test_finite_check_against_the_step_alone(benchmark: BenchmarkFixture) -> None:
    checked, plain = flat_optimizer(skip_nonfinite=True), flat_optimizer()
    benchmark.extra_info["ratio_to_step_without_check"] = ratio(checked.step, plain.step)
    benchmark(checked.step)


def test_norm_against_a_copy(benchmark: BenchmarkFixture) -> None:
    optimizer = flat_optimizer()
    source, target = torch.randn(NUMEL * TENSORS), torch.empty(NUMEL * TENSORS)
    copying = ratio(optimizer.grad_norm, lambda: target.copy_(source))
    benchmark.extra_info["ratio_to_memcpy"] = copying
    benchmark(optimizer.grad_norm)


def test_step_overhead_on_tiny_tensors(benchmark: BenchmarkFixture) -> None:
    ours, theirs = flat_optimizer(16), torch_optimizer(16)
    benchmark.extra_info["ratio_to_torch_fused"] = ratio(ours.step, theirs.step)
    benchmark(ours.step)
