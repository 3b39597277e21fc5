"""Host costs of planning: 10,000 members cut for a world of 131,072 ranks."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from sshsdp_shardchain import Degrees, Layout, Level

DEGREES = Degrees(zero3=8, zero2=8, zero1=512)
MEMBERS = [(f"layers.{index}.weight", 1000 + index % 7) for index in range(10_000)]


@pytest.fixture(scope="module")
def layout() -> Layout:
    return Layout.pack(MEMBERS, DEGREES, 131_072, align=32)


def test_pack_10k_members(benchmark: BenchmarkFixture) -> None:
    packed = benchmark(Layout.pack, MEMBERS, DEGREES, 131_072, align=32)
    assert len(packed.placements) == 10_000


def test_fragments_of_10k_members(benchmark: BenchmarkFixture, layout: Layout) -> None:
    fragments = benchmark(layout.fragments, Level.ZERO1, 77_777)
    assert len(fragments) == 10_000


def test_held_fragments_of_10k_members(benchmark: BenchmarkFixture, layout: Layout) -> None:
    held = benchmark(lambda: list(layout.overlapping(Level.ZERO1, 77_777)))
    assert 0 < len(held) < 100


def test_one_fragment_of_10k_members(benchmark: BenchmarkFixture, layout: Layout) -> None:
    fragment = benchmark(layout.fragment, "layers.5000.weight", Level.ZERO1, 77_777)
    assert fragment.name == "layers.5000.weight"


def test_signature_of_10k_members(benchmark: BenchmarkFixture, layout: Layout) -> None:
    assert len(benchmark(layout.signature)) == 64


def test_owners_of_512_chunks(benchmark: BenchmarkFixture, layout: Layout) -> None:
    assert len(benchmark(layout.chain.owners, Level.ZERO1)) == 512
