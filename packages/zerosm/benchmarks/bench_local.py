"""Costs inside one rank: sums against memory speed, overhead of a run, compiling."""

import time

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from sshsdp_zerosm import (
    Loopback,
    Program,
    Reduce,
    Region,
    Schedule,
    Transport,
    all_gather_pull,
    reduce_scatter,
)

NUMEL = 4 * 2**20  # float32: 16 MiB


def memcpy_seconds(buffers: int) -> float:
    """Shortest time to copy 16 MiB, while at least so many buffers are in turns.

    As many as a reduction touches: fewer could stay in the last-level cache and be no measure.
    """
    pairs = [(torch.ones(NUMEL), torch.ones(NUMEL)) for _ in range((buffers + 1) // 2)]
    samples = []
    for source, target in pairs * 12:
        start = time.perf_counter()
        target.copy_(source)
        samples.append(time.perf_counter() - start)
    return min(samples[len(pairs) :])


def reduction(dtype: torch.dtype, sources: int, scale: float) -> Program:
    transport = Loopback(1).transports[0]
    nbytes = NUMEL * dtype.itemsize
    for index in range(sources):
        transport.arena(f"source{index}", nbytes).tensor().view(dtype).fill_(1.0)
    transport.arena("target", NUMEL * 4)
    op = Reduce(
        tuple(Region(f"source{index}", 0, 0, nbytes) for index in range(sources)),
        Region("target", 0, 0, NUMEL * 4),
        dtype,
        torch.float32,
        scale,
    )
    return transport.compile(Schedule("r", 1, {"reduce": ((op,),)}))


@pytest.mark.parametrize("accumulate", [False, True], ids=["overwrite", "accumulate"])
@pytest.mark.parametrize("scale", [1.0, 1 / 3], ids=["unscaled", "third"])
@pytest.mark.parametrize("sources", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_reduce_into_16_mib(
    benchmark: BenchmarkFixture, dtype: torch.dtype, sources: int, scale: float, accumulate: bool
) -> None:
    program = reduction(dtype, sources, scale)
    copy = memcpy_seconds(sources + 1)
    benchmark(program.run, "reduce", accumulate=accumulate)
    benchmark.extra_info["memcpy_seconds"] = copy
    if benchmark.stats is not None:
        benchmark.extra_info["ratio_to_memcpy"] = benchmark.stats.stats.min / copy


def empty_reduce_scatter(world: int) -> Schedule:
    return reduce_scatter(
        "r",
        inputs=[Region("a", rank, 0, 0) for rank in range(world)],
        accumulators=[Region("a", rank, 0, 0) for rank in range(world)],
        dtype=torch.float32,
        accumulator=torch.float32,
        group=range(world),
        world=world,
        slot="s",
    )


def test_overhead_of_a_phase_of_eight_ranks(benchmark: BenchmarkFixture) -> None:
    loopback = Loopback(8)
    for transport in loopback.transports:
        transport.arena("a", 0)
    programs = [transport.compile(empty_reduce_scatter(8)) for transport in loopback.transports]
    benchmark(programs[0].run, "ready")


def test_compile_100_gathers_of_64_mib(benchmark: BenchmarkFixture) -> None:
    transport: Transport = Loopback(1).transports[0]
    region = Region("a", 0, 0, 64 * 2**20)
    transport.arena("a", 2 * region.nbytes)
    output = Region("a", 0, region.nbytes, region.nbytes)
    schedule = all_gather_pull("g", shards=[region], outputs=[output], group=(0,), world=1)
    benchmark(lambda: [transport.compile(schedule) for _ in range(100)])
