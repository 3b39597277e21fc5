"""Rules over parameters that torch or FSDP2 owns."""

import copy
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from testing.ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from sshsdp_updates import AdamW, Muon, NorMuon, columns, heads, optimizer_for

STEPS = 3


class Block(nn.Module):
    """Projections with heads of four rows or columns, norms, and rows that no world divides."""

    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(10, 12, bias=False)
        self.out_proj = nn.Linear(12, 10)
        self.norm = nn.LayerNorm(10)
        self.idle = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x + self.out_proj(torch.tanh(self.q_proj(self.norm(x))))


def choices(ns_dtype=torch.float32):
    muon, norm, adamw = Muon(0.05, ns_dtype=ns_dtype), NorMuon(0.05, ns_dtype=ns_dtype), AdamW(0.05)

    def choose(name, shape):
        if name.endswith("q_proj.weight"):
            return muon, heads(4)
        if name.endswith("out_proj.weight"):
            return norm, columns(4)
        return adamw

    return choose


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(5, 10, generator=generator, dtype=torch.float64)


def model():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).double()


def trained_alone(world):
    ours = model()
    optimizer = optimizer_for(ours.named_parameters(), choices(torch.float64))
    for step in range(STEPS):
        for rank in range(world):
            (ours(batch(step, rank)).square().mean() / world).backward()
        nn.utils.clip_grad_norm_(ours.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach() for name, p in ours.named_parameters()}


def under_fsdp2(rank, replicate):
    dist.init_process_group(
        "gloo",
        store=rank.store,
        rank=rank.rank,
        world_size=rank.world,
        timeout=timedelta(seconds=60),
    )
    try:
        ours = model()
        shape = (2, rank.world // 2) if replicate else (rank.world,)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replica", "shard")[-len(shape) :])
        for layer in ours:
            fully_shard(layer, mesh=mesh)
        fully_shard(ours, mesh=mesh)
        optimizer = optimizer_for(ours.named_parameters(), choices(torch.float64))
        for step in range(STEPS):
            ours(batch(step, rank.rank)).square().mean().backward()
            nn.utils.clip_grad_norm_(ours.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        moved = [plan.moved()[0] for plan in optimizer.plans]
        return moved, {n: p.full_tensor().detach() for n, p in ours.named_parameters()}
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(("world", "replicate"), [(2, False), (3, False), (4, True)])
def test_a_model_under_fsdp2_trains_as_one_alone(world, replicate):
    expected = trained_alone(world)
    for moved, state in run_ranks(under_fsdp2, world, replicate):
        assert any(moved), "the test should exchange something"
        for name, value in expected.items():
            torch.testing.assert_close(state[name], value, rtol=1e-10, atol=1e-10)


def test_plain_parameters_are_updated_in_place_and_those_without_gradient_are_not():
    ours = Block()
    before = copy.deepcopy(ours.state_dict())
    addresses = [p.data_ptr() for p in ours.parameters()]
    optimizer = optimizer_for(ours.named_parameters(), choices())
    ours(torch.randn(4, 10)).sum().backward()
    optimizer.step()
    assert [p.data_ptr() for p in ours.parameters()] == addresses
    changed = [n for n, p in ours.state_dict().items() if not torch.equal(p, before[n])]
    assert set(changed) == set(before) - {"idle"}


def test_clipping_by_the_optimizer_counts():
    first, second = Block(), Block()
    second.load_state_dict(first.state_dict())
    x = torch.randn(4, 10)
    for ours, clip in ((first, True), (second, False)):
        optimizer = optimizer_for(ours.named_parameters(), lambda *_: AdamW(0.1, eps=1.0))
        ours(x).square().sum().backward()
        if clip:
            optimizer.clip_grad_norm_(1e-3)
        optimizer.step()
    assert not torch.equal(first.q_proj.weight, second.q_proj.weight)


def test_frozen_parameters_are_left_out():
    ours = Block()
    ours.q_proj.weight.requires_grad_(False)
    optimizer = optimizer_for(ours.named_parameters(), choices())
    assert "q_proj.weight" not in optimizer.state_dict()["state"]


def test_other_placements_are_refused_by_name():
    def scene(rank):
        dist.init_process_group("gloo", store=rank.store, rank=rank.rank, world_size=rank.world)
        try:
            mesh = init_device_mesh("cpu", (rank.world,))
            tensor = distribute_tensor(torch.ones(4, 4), mesh, [Shard(1)])
            assert isinstance(tensor, DTensor)
            try:
                optimizer_for([("w", nn.Parameter(tensor))], lambda *_: AdamW())
            except ValueError as error:
                return str(error)
        finally:
            dist.destroy_process_group()

    for text in run_ranks(scene, 2):
        assert "parameter 'w': expected one Shard(0)" in text
