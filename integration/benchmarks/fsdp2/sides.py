"""The three sides: one function per side, called on every rank of a fresh process."""

import os

import torch
from testing.bench_memory import pss
from testing.ranks import Rank
from torch import nn

from .reference import LEARNING_RATE, build, train


def fsdp2(rank: Rank, **workload: int) -> dict[str, list[float]]:
    """PyTorch's fully_shard per block and for the root, fused AdamW, gloo."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=rank.store, rank=rank.rank, world_size=rank.world)
    before = pss()
    mesh = init_device_mesh("cpu", (rank.world,))
    model = build()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    result = train(model, optimizer, rank.rank, **workload)
    dist.destroy_process_group()
    return result | {"memory_before": [before]}


def sshsdp(rank: Rank, **workload: int) -> dict[str, list[float]]:
    """Our fully_shard with blocks as groups and AdamW."""
    from sshsdp_fsdp_runtime import Sharding, Update, fully_shard
    from sshsdp_shardchain import Degrees
    from sshsdp_updates import AdamW
    from sshsdp_zerosm import connect

    transport = connect(rank.rank, rank.world, rank.store)
    before = pss()
    world = rank.world
    model = fully_shard(
        build(),
        sharding=[Sharding("**", Degrees(world, world, world))],
        groups=["layers.*"],
        updates=[Update("**", AdamW(lr=LEARNING_RATE))],
        transport=transport,
    )
    result = train(model, model.optimizer, rank.rank, **workload)
    model.close()
    return result | {"memory_before": [before]}


def floor(rank: Rank, **workload: int) -> dict[str, list[float]]:
    """No communication: plain gradients, fused AdamW over this rank's part of the elements."""
    before = pss()
    model = build()
    optimizer = PartialAdamW(model, rank.rank, rank.world)
    result = train(model, optimizer, rank.rank, **workload)
    return result | {"memory_before": [before]}


class PartialAdamW:
    """Fused AdamW over one of `world` equal parts of every parameter."""

    def __init__(self, model: nn.Module, rank: int, world: int) -> None:
        self._parameters = list(model.parameters())
        self._rank, self._world = rank, world
        self._parts = [nn.Parameter(self._part(p.detach())) for p in self._parameters]
        self._inner = torch.optim.AdamW(self._parts, lr=LEARNING_RATE, fused=True)

    def step(self) -> None:
        for parameter, part in zip(self._parameters, self._parts, strict=True):
            assert parameter.grad is not None
            part.grad = self._part(parameter.grad)
        self._inner.step()

    def zero_grad(self) -> None:
        self._inner.zero_grad()
        for parameter in self._parameters:
            parameter.grad = None

    def _part(self, full: torch.Tensor) -> torch.Tensor:
        return full.view(-1).chunk(self._world)[self._rank]
