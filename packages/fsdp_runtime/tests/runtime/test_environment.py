"""Ranks that a launcher's environment describes need no transport of their own."""

import os
import socket

import torch
from testing.ranks import Rank, run_ranks
from torch import nn

from sshsdp_fsdp_runtime import fully_shard
from sshsdp_fsdp_runtime.checkpoint import load_checkpoint, save_checkpoint


def train(rank: Rank, folder):
    if rank.rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as free:
            rank.store.set("port", str(free.getsockname()[1]))
    os.environ |= {
        "RANK": str(rank.rank),
        "WORLD_SIZE": str(rank.world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": rank.store.get("port").decode(),
    }
    torch.manual_seed(0)
    model = fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), groups=["*"])
    model(torch.full((2, 4), rank.rank + 1.0)).sum().backward()
    model.optimizer.step()
    trained = model.full_state_dict()
    save_checkpoint(folder / "one", model, {"step": 1})
    model.load_state_dict({name: torch.zeros_like(value) for name, value in trained.items()})
    extra = load_checkpoint(folder / "one", model)
    loaded = model.full_state_dict()
    model.close()
    same = all(torch.equal(loaded[name], value) for name, value in trained.items())
    return model.plan.world, extra["step"], same


def test_ranks_meet_train_and_save_as_the_environment_says(tmp_path):
    assert run_ranks(train, 2, tmp_path, timeout=60) == [(2, 1, True)] * 2
