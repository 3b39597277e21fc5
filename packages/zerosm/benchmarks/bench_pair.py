"""Costs between two ranks: barrier, gather check, exchange, a whole reduce-scatter round."""

import contextlib
import os
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch.distributed import FileStore  # type: ignore[attr-defined]

from sshsdp_zerosm import (
    PeerClosedError,
    Program,
    Region,
    Transport,
    all_gather_aliased,
    connect,
    reduce_scatter,
)

NBYTES = 16 * 2**20


class Pair:
    """This process as rank 0, and what both ranks need."""

    def __init__(self, rank: int, store: str) -> None:
        self.transport: Transport = connect(rank, 2, FileStore(store, 2), timeout=60)
        self.stop = self.transport.arena("stop", 8, shared=True).tensor()
        self.input = self.transport.arena("input", NBYTES).tensor()
        self.transport.arena("sum", NBYTES // 2)
        self.gather = self.transport.compile(all_gather_aliased("g", group=(0, 1), world=2))
        self.scatter: Program = self.transport.compile(
            reduce_scatter(
                "r",
                inputs=[Region("input", at, 0, NBYTES) for at in (0, 1)],
                accumulators=[Region("sum", at, 0, NBYTES // 2) for at in (0, 1)],
                dtype=torch.float32,
                accumulator=torch.float32,
                group=(0, 1),
                world=2,
                slot="s",
            )
        )

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


def _partner(store: str, name: str) -> None:
    torch.set_num_threads(1)
    pair = Pair(1, store)
    pair.transport.publish()
    call = pair.call(name)
    while not pair.stop[0]:
        call()
    pair.transport.close()


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Rank 0 of two; rank 1 makes the call of the parameter until told to stop."""
    name = request.param
    store = str(tmp_path / "store")
    partner = get_context("fork").Process(target=_partner, args=(store, name))
    partner.start()
    ours = Pair(0, store)
    yield ours
    ours.stop.fill_(1)
    # The partner sees the stop before this call, or waits in it and sees it after.
    with contextlib.suppress(PeerClosedError):
        ours.call(name)()
    ours.transport.close()
    partner.join(timeout=60)
    assert partner.exitcode == 0


@pytest.mark.parametrize("pair", ["barrier"], indirect=True)
def test_barrier_of_two(benchmark: BenchmarkFixture, pair: Pair) -> None:
    benchmark.extra_info["cores"] = len(os.sched_getaffinity(0))
    benchmark(pair.call("barrier"))


@pytest.mark.parametrize("pair", ["barrier"], indirect=True)
def test_aliased_gather_check(benchmark: BenchmarkFixture, pair: Pair) -> None:
    pair.call("barrier")()
    pair.transport.publish()
    pair.call("barrier")()
    benchmark(pair.gather.run, "gather")


@pytest.mark.parametrize("pair", ["exchange"], indirect=True)
def test_exchange_of_64_bytes(benchmark: BenchmarkFixture, pair: Pair) -> None:
    benchmark(pair.call("exchange"))


@pytest.mark.parametrize("pair", ["reduce_scatter"], indirect=True)
def test_reduce_scatter_of_16_mib(benchmark: BenchmarkFixture, pair: Pair) -> None:
    benchmark.extra_info["bytes_per_rank"] = NBYTES
    benchmark(pair.call("reduce_scatter"))
