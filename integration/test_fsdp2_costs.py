"""FSDP2 performs the three memory operations that this project does without, seen by the ledger."""

import pytest
import torch
import torch.distributed as dist
from testing.ledger import Kind, Ledger
from testing.ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WORLD = 2
LAYERS = 3
WEIGHT = 24 * 24 * 4
SHARD = WEIGHT // WORLD


def second_microbatch(rank):
    """What one rank does in forward and backward when gradients of a microbatch exist already."""
    dist.init_process_group("gloo", store=rank.store, rank=rank.rank, world_size=rank.world)
    model = nn.Sequential(*(nn.Linear(24, 24, bias=False) for _ in range(LAYERS)))
    mesh = init_device_mesh("cpu", (rank.world,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(torch.ones(5, 24)).sum().backward()
    ranges = {}
    for i, parameter in enumerate(model.parameters()):
        ranges[f"weight {i}"] = parameter.to_local()
        ranges[f"gradient {i}"] = parameter.grad.to_local()
    with Ledger(ranges) as ledger:
        model(torch.ones(5, 24)).sum().backward()
    return ledger.entries


@pytest.fixture(scope="module")
def entries():
    return run_ranks(second_microbatch, WORLD)[0]


@pytest.mark.parametrize("layer", range(LAYERS))
def test_weights_are_copied_in_before_each_gather(entries, layer):
    copies = [e for e in entries if e.kind is Kind.COPY and f"weight {layer}" in e.reads]
    assert [e.reads[f"weight {layer}"] for e in copies] == [SHARD] * len(copies)
    # The last layer stays gathered between forward and backward.
    assert len(copies) >= (2 if layer < LAYERS - 1 else 1)


def test_weights_are_copied_out_after_each_gather(entries):
    gathers = [e for e in entries if e.kind is Kind.EXCHANGE and "allgather" in e.op]
    assert {(e.read_bytes, e.written_bytes) for e in gathers} == {(SHARD, WEIGHT)}
    copies = [e for e in entries if "split_with_sizes_copy" in e.op]
    assert len(copies) == len(gathers) >= 2 * LAYERS - 1
    assert {(e.kind, e.read_bytes, e.written_bytes) for e in copies} == {
        (Kind.COPY, WEIGHT, WEIGHT)
    }


def test_gradients_are_packed_before_each_reduction(entries):
    copies = [e for e in entries if "chunk_cat" in e.op]
    assert [(e.kind, e.read_bytes, e.written_bytes) for e in copies] == [
        (Kind.COPY, WEIGHT, WEIGHT)
    ] * LAYERS


@pytest.mark.parametrize("layer", range(LAYERS))
def test_gradients_are_added_apart_from_the_reduction(entries, layer):
    name = f"gradient {layer}"
    (added,) = (e for e in entries if name in e.writes)
    assert (added.kind, added.writes[name], added.reads[name]) == (Kind.ADD, SHARD, SHARD)
    assert added.read_bytes == 2 * SHARD


def test_gradients_come_in_memory_of_their_own_not_where_they_are_reduced(entries):
    products = [e for e in entries if e.kind is Kind.MATMUL and e.allocated_bytes == WEIGHT]
    assert len(products) == LAYERS
