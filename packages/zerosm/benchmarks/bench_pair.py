"""Costs between two ranks: barrier, gather check, exchange, a whole reduce-scatter round.

"shared" ranks share memory, "messages" are between two nodes.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch.distributed import FileStore  # type: ignore[attr-defined]

from sshsdp_zerosm import (
    PeerClosedError,
    Program,
    Region,
    Topology,
    Transport,
    all_gather_aliased,
    connect,
    hierarchical_reduce_scatter,
    reduce_scatter_workspace,
)

NBYTES = 16 * 2**20


class Pair:
    """This process as rank 0, and what both ranks need."""

    def __init__(self, rank: int, store: str, kind: str) -> None:
        topology = Topology(1, 2) if kind == "shared" else Topology(2, 1)
        self.transport: Transport = connect(
            rank, 2, FileStore(store, 2), timeout=60, topology=topology
        )
        self.input = self.transport.arena("input", NBYTES).tensor()
        self.transport.arena("sum", NBYTES // 2)
        common: dict[str, Any] = {
            "accumulator": torch.float32, "group": (0, 1), "topology": topology,
            "chunk_bytes": 2**20,
        }  # fmt: skip
        space = reduce_scatter_workspace(counts=(NBYTES // 8,), **common)
        self.transport.arena("work", space)
        self.gather = self.transport.compile(all_gather_aliased("g", group=(0, 1), world=2))
        self.scatter: Program = self.transport.compile(
            hierarchical_reduce_scatter(
                "r",
                inputs=[Region("input", at, 0, NBYTES) for at in (0, 1)],
                accumulators=[Region("sum", at, 0, NBYTES // 2) for at in (0, 1)],
                workspace=[Region("work", at, 0, space) for at in (0, 1)],
                dtype=torch.float32,
                slot="s",
                **common,
            )
        )

        self.transport.publish()

    def call(self, name: str) -> Callable[[], object]:
        """The collective call of that name."""

        def round_() -> None:
            for phase in ("acquire", "ready", "reduce"):
                self.scatter.run(phase, accumulate=True)

        return {
            "barrier": self.transport.barrier,
            "exchange": lambda: self.transport.exchange(b"64 bytes" * 8),
            "reduce_scatter": round_,
        }[name]


def _partner(store: str, kind: str, name: str) -> None:
    torch.set_num_threads(1)
    pair = Pair(1, store, kind)
    call = pair.call(name)
    with contextlib.suppress(PeerClosedError):
        while True:
            call()
    pair.transport.close()


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Rank 0 of two; rank 1 makes the call of the parameter until rank 0 closes."""
    kind, name = request.param.split()
    store = str(tmp_path / "store")
    partner = get_context("fork").Process(target=_partner, args=(store, kind, name))
    partner.start()
    ours = Pair(0, store, kind)
    yield ours
    ours.transport.close()
    partner.join(timeout=60)
    assert partner.exitcode == 0


@pytest.mark.parametrize("pair", ["shared barrier", "messages barrier"], indirect=True)
def test_barrier_of_two(benchmark: BenchmarkFixture, pair: Pair) -> None:
    benchmark.extra_info["cores"] = len(os.sched_getaffinity(0))
    benchmark(pair.call("barrier"))


@pytest.mark.parametrize("pair", ["shared barrier"], indirect=True)
def test_aliased_gather_check(benchmark: BenchmarkFixture, pair: Pair) -> None:
    pair.call("barrier")()
    benchmark(pair.gather.run, "gather")


@pytest.mark.parametrize("pair", ["shared exchange", "messages exchange"], indirect=True)
def test_exchange_of_64_bytes(benchmark: BenchmarkFixture, pair: Pair) -> None:
    benchmark(pair.call("exchange"))


@pytest.mark.parametrize(
    "pair", ["shared reduce_scatter", "messages reduce_scatter"], indirect=True
)
def test_reduce_scatter_of_16_mib(benchmark: BenchmarkFixture, pair: Pair) -> None:
    benchmark.extra_info["bytes_per_rank"] = NBYTES
    benchmark(pair.call("reduce_scatter"))
