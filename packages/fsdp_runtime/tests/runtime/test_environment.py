"""Ranks that a launcher's environment describes need no transport of their own."""

import os
import socket

import pytest
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


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"RANK": "abc"}, "RANK to be an integer of 0 or more, got RANK='abc'; start ranks with t"),
        ({"RANK": "5"}, "RANK from 0 to 1 with WORLD_SIZE=2, got RANK=5; number the ranks from 0"),
        ({"RANK": "-1"}, "RANK to be an integer of 0 or more, got RANK='-1'"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE to be an integer of 1 or more, got WORLD_SIZE='two'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE to be an integer of 1 or more"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT to be an integer of 0 or more, got MASTER_PORT='h"),
    ],
)
def test_an_environment_that_can_not_be_is_refused_before_the_store_is_waited_for(
    monkeypatch, changed, text
):
    given = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in (given | changed).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=text):
        fully_shard(nn.Linear(2, 2))
