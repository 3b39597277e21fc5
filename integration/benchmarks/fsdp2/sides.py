"""The three sides: one function per side, called on every rank of a fresh process."""

import os
from typing import TYPE_CHECKING

import torch
from testing.bench_memory import pss
from testing.ranks import Rank
from torch import nn

from .reference import LEARNING_RATE, batches, build, train, training

if TYPE_CHECKING:
    from sshsdp_fsdp_runtime import ShardedModule
    from sshsdp_zerosm import Transport


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
    from sshsdp_zerosm import connect

    transport = connect(rank.rank, rank.world, rank.store)
    before = pss()
    model = _sharded(transport)
    result = train(model, model.optimizer, rank.rank, **workload)
    model.close()
    return result | {"memory_before": [before]}


def paired(
    rank: Rank, *, warmup: int, steps: int, sequences: int, tokens: int
) -> dict[str, list[float]]:
    """Ours and the floor in the same processes, step by step: what the machine does meets both.

    The floor has no communication: plain gradients, fused AdamW over this rank's part of the
    elements.

    Returns:
        "seconds" of our steps and "floor_seconds", after the warm-up.
    """
    from sshsdp_zerosm import connect

    transport = connect(rank.rank, rank.world, rank.store)
    ours, plain = _sharded(transport), build()
    data = list(batches(rank.rank, warmup + steps, sequences, tokens))
    loops = [
        training(ours, ours.optimizer, data),
        training(plain, PartialAdamW(plain, rank.rank, rank.world), data),
    ]
    seconds: list[list[float]] = [[], []]
    for step in range(warmup + steps):
        for side in (0, 1) if step % 2 == 0 else (1, 0):
            transport.barrier()  # or one side would wait for what the other has not ended
            seconds[side].append(next(loops[side])[0])
    ours.close()
    return {"seconds": seconds[0][warmup:], "floor_seconds": seconds[1][warmup:]}


def _sharded(transport: "Transport") -> "ShardedModule":
    from sshsdp_fsdp_runtime import Sharding, Update, fully_shard
    from sshsdp_shardchain import Degrees
    from sshsdp_updates import AdamW

    world = transport.world
    return fully_shard(
        build(),
        sharding=[Sharding("**", Degrees(world, world, world))],
        groups=["layers.*"],
        updates=[Update("**", AdamW(lr=LEARNING_RATE))],
        transport=transport,
    )


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
