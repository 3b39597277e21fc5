"""Costs of rules over units: the iteration against its products, a step against torch's, planning.

Ratios are in ``extra_info``; both sides alternate in one process.
"""

import statistics
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from sshsdp_shardchain import ChainHolders, Degrees, Layout
from sshsdp_updates import (
    ITERATIONS,
    Muon,
    PlanList,
    PlanMember,
    TensorUnit,
    columns,
    experts,
    heads,
    newton_schulz,
    optimizer_for,
    pieces,
    plan_updates,
)
from sshsdp_updates.newton_schulz import newton_schulz_cost

ROUNDS = 7
WIDTH = 256
LAYERS = 4

Members = dict[str, tuple[tuple[int, ...], TensorUnit]]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def ratio(ours: Callable[[], object], theirs: Callable[[], object]) -> float:
    """Return the median over rounds of time(ours) / time(theirs), taken in turns."""
    return statistics.median([_seconds(ours) / _seconds(theirs) for _ in range(ROUNDS + 1)][1:])


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def test_iteration_against_the_rate_of_products(benchmark: BenchmarkFixture) -> None:
    matrices = torch.randn(4, WIDTH, 4 * WIDTH)
    coefficients = ITERATIONS["kj5"].sequence()
    square = torch.randn(4 * WIDTH, 4 * WIDTH)

    def iterate() -> object:
        return newton_schulz(matrices, coefficients, dtype=torch.float32)

    measured = ratio(iterate, lambda: square @ square)
    flops = 4 * newton_schulz_cost((WIDTH, 4 * WIDTH), 5) / (2 * (4 * WIDTH) ** 3)
    benchmark.extra_info["ratio_to_flops_at_gemm_rate"] = measured / flops
    benchmark(iterate)


def layers() -> list[tuple[str, torch.nn.Parameter]]:
    shapes = [(WIDTH, WIDTH)] * 4 + [(4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)]
    found = []
    for layer in range(LAYERS):
        for index, shape in enumerate(shapes):
            parameter = torch.nn.Parameter(torch.randn(shape))
            parameter.grad = torch.randn(shape)
            found.append((f"{layer}.{index}", parameter))
    return found


def test_step_against_torch_muon(benchmark: BenchmarkFixture) -> None:
    """Both iterate in bfloat16; a CPU without instructions for it is slow at that."""
    rule = Muon(0.02)
    ours = optimizer_for(layers(), lambda *_: rule, skip_nonfinite=False)
    theirs = torch.optim.Muon([parameter for _, parameter in layers()], lr=0.02)
    benchmark.extra_info["ratio_to_torch_muon"] = ratio(ours.step, theirs.step)
    benchmark(ours.step)


def plan_of(members: Members, layers: int, world: int) -> Callable[[], object]:
    lists = []
    for layer in range(layers):
        named = {f"{layer}.{name}": what for name, what in members.items()}
        sizes = [(name, torch.Size(shape).numel()) for name, (shape, _) in named.items()]
        layout = Layout.pack(sizes, Degrees(world, world, world), world, align=16)
        planned = tuple(PlanMember(name, *what) for name, what in named.items())
        lists.append(PlanList(f"layer{layer}", torch.float32, planned, ChainHolders(layout)))
    return lambda: plan_updates(Muon(), lists, world)


def test_plan_of_qwen3_30b_a3b_at_128_ranks(benchmark: BenchmarkFixture) -> None:
    members = {
        "q": ((4096, 2048), heads(128)),
        "k": ((512, 2048), heads(128)),
        "v": ((512, 2048), heads(128)),
        "o": ((2048, 4096), columns(128)),
        "gate_up": ((128, 1536, 2048), pieces((768, 768))),
        "down": ((128, 2048, 768), experts()),
    }
    benchmark.pedantic(plan_of(members, 48, 128), rounds=1)  # type: ignore[no-untyped-call]


def test_plan_of_a_trillion_parameters_at_4096_ranks(benchmark: BenchmarkFixture) -> None:
    members = {
        "q_b": ((128 * 192, 1536), heads(192)),
        "kv_b": ((128 * 256, 512), heads(256)),
        "o": ((7168, 16384), columns(128)),
        "gate_up": ((384, 4096, 7168), pieces((2048, 2048))),
        "down": ((384, 7168, 2048), experts()),
    }
    benchmark.pedantic(plan_of(members, 60, 4096), rounds=1)  # type: ignore[no-untyped-call]
