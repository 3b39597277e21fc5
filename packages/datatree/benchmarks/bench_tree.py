"""Host costs of trees of 1,000 nodes: building, attaching, cutting views, reading cached ones."""

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from sshsdp_datatree import DataNode, TensorList, TorchAllocator, describe

MEMBERS = [(f"layers.{index}.weight", (8, 8), 64 * index) for index in range(1000)]
NBYTES = 64 * 1000 * 4


def build() -> TensorList:
    root = DataNode("root", (NBYTES,), torch.uint8)
    tensors = TensorList.build("weights", torch.float32, MEMBERS, 64 * 1000, parent=root)
    root.finalize()
    return tensors


@pytest.fixture
def tensors() -> TensorList:
    return build()


def test_build_and_finalize_1k_nodes(benchmark: BenchmarkFixture) -> None:
    assert len(benchmark(build).members) == 1000


def test_attach_view_and_detach_1k_nodes(benchmark: BenchmarkFixture, tensors: TensorList) -> None:
    storage = TorchAllocator().allocate(NBYTES, "root")
    nodes = list(tensors.members.values())

    def cycle() -> int:
        tensors.attach(storage)
        count = sum(1 for node in nodes if node.tensor is not None)
        tensors.detach()
        return count

    assert benchmark(cycle) == 1000


def test_read_1k_cached_views(benchmark: BenchmarkFixture, tensors: TensorList) -> None:
    tensors.attach(TorchAllocator())
    nodes = list(tensors.members.values())
    assert len(benchmark(lambda: [node.tensor for node in nodes])) == 1000


def test_poison_1k_nodes(benchmark: BenchmarkFixture, tensors: TensorList) -> None:
    tensors.attach(TorchAllocator())
    benchmark(tensors.poison)
    assert tensors.tensor.isnan().all()


def test_describe_1k_nodes(benchmark: BenchmarkFixture, tensors: TensorList) -> None:
    assert benchmark(describe, tensors.root).count("\n") == 1001
