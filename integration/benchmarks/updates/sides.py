"""The two sides: one function per side, called on every rank of a fresh process."""

import time
from collections.abc import Sequence

import torch
from testing.ranks import Rank

from sshsdp_fsdp_runtime import Sharding, Update, fully_shard
from sshsdp_shardchain import Degrees
from sshsdp_updates import AdamW, Muon, columns, heads
from sshsdp_zerosm import connect

from .shared import reference

SIZE = reference.WIDTH // reference.HEADS


class Timed:
    """An optimizer that notes how long its steps take."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.seconds: list[float] = []

    def step(self) -> None:
        start = time.perf_counter()
        self._optimizer.step()
        self.seconds.append(time.perf_counter() - start)

    def zero_grad(self) -> None:
        self._optimizer.zero_grad()


def adamw(rank: Rank, **workload: int) -> dict[str, list[float]]:
    """AdamW for all parameters."""
    return _train(rank, [Update("**", AdamW(lr=reference.LEARNING_RATE))], workload)


def muon(rank: Rank, **workload: int) -> dict[str, list[float]]:
    """Muon for the matrices of blocks, AdamW for the rest."""
    lr = reference.LEARNING_RATE
    rule = Muon(lr=lr, adjust_lr_fn="match_rms_adamw", ns_dtype=torch.float32)
    updates = [
        Update("**.qkv.weight", rule, unit=heads(SIZE)),
        Update("**.output.weight", rule, unit=columns(SIZE)),
        *(Update(f"**.{name}.weight", rule) for name in ("up", "down")),
        Update("**", AdamW(lr=lr)),
    ]
    return _train(rank, updates, workload)


def _train(
    rank: Rank, updates: Sequence[Update], workload: dict[str, int]
) -> dict[str, list[float]]:
    """What `reference.train` returns; seconds of updates, and the operations of their products."""
    transport = connect(rank.rank, rank.world, rank.store)
    world = rank.world
    model = fully_shard(
        reference.build(),
        sharding=[Sharding("**", Degrees(world, world, world))],
        groups=["layers.*"],
        updates=updates,
        transport=transport,
    )
    operations = sum(sum(made.loads) for made in model.plan.update_plans)
    optimizer = Timed(model.optimizer)
    result: dict[str, list[float]] = reference.train(model, optimizer, rank.rank, **workload)
    model.close()
    return result | {
        "update_seconds": optimizer.seconds[workload["warmup"] :],
        "operations": [float(operations)],
    }
