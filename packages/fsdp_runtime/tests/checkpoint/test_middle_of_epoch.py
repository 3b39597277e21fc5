"""Stopped in the middle of an epoch and resumed, a run is the uninterrupted one bit for bit.

Dropout draws from torch's generator, a different one on every rank; the learning rate follows a
scheduler; the data are shuffled once per epoch and counted.
"""

import json

import pytest
import torch
from packages.fsdp_runtime.tests.checkpoint.cut_model import CutModel, StoreTransport
from packages.fsdp_runtime.tests.checkpoint.scenes import on_ranks
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from sshsdp_fsdp_runtime import Update, is_matrix
from sshsdp_fsdp_runtime.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from sshsdp_updates import AdamW, Muon

ROWS, STEPS, STOP = 10, 16, 7  # an epoch has 5 steps on 2 ranks


class Noisy(nn.Module):
    """Dropout between two layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 7), nn.Linear(7, 3)])
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.layers[1](self.dropout(torch.tanh(self.layers[0](x))))


UPDATES = [
    Update("**", Muon(lr=1e-1, ns_dtype=torch.float32), where=is_matrix),
    Update("**", AdamW(lr=1e-1)),
]


class Run:
    """A training loop whose whole state fits into `extra`."""

    def __init__(self, rank, model):
        self.rank, self.model = rank, model
        torch.manual_seed(100 + rank.rank)
        self.scheduler = CosineAnnealingLR(model.optimizer, STEPS)
        self.shuffle = torch.Generator().manual_seed(5)
        self.order, self.position = torch.randperm(ROWS, generator=self.shuffle), 0

    def step(self):
        rows = torch.stack([torch.arange(5.0) * n % 7 for n in range(ROWS)])
        if self.position == ROWS:
            self.order, self.position = torch.randperm(ROWS, generator=self.shuffle), 0
        mine = self.order[self.position + self.rank.rank]
        self.position += self.rank.world
        loss = self.model(rows[mine : mine + 1]).square().mean()
        loss.backward()
        self.model.optimizer.step()
        self.model.optimizer.zero_grad()
        self.scheduler.step()
        return loss.item()

    def extra(self):
        return {
            "step": STOP,
            "scheduler": self.scheduler.state_dict(),
            "data": {
                "order": self.order,
                "position": self.position,
                "shuffle": self.shuffle.get_state(),
            },
            "per_rank": {"rng": torch.get_rng_state()},
        }

    def restore(self, extra):
        self.scheduler.load_state_dict(extra["scheduler"])
        self.order, self.position = extra["data"]["order"], extra["data"]["position"]
        self.shuffle.set_state(extra["data"]["shuffle"])
        torch.set_rng_state(extra["per_rank"]["rng"])


def values(model):
    return {name: value.tolist() for name, value in model.full_state_dict().items()}


def uninterrupted(rank, model, path, asynchronous):
    run = Run(rank, model)
    losses = []
    for step in range(STEPS):
        if step == STOP:
            save_checkpoint(path, model, run.extra(), asynchronous=asynchronous)
        losses.append(run.step())
    return losses[STOP:], values(model), model.checkpoint_scalars()


def resumed(rank, model, path):
    run = Run(rank, model)
    torch.rand(9)  # another position of the generator
    run.restore(load_checkpoint(path, model))
    losses = [run.step() for _ in range(STOP, STEPS)]
    return losses, values(model), model.checkpoint_scalars()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_resumed_run_is_the_uninterrupted_run(tmp_path, asynchronous):
    assert STOP * 2 % ROWS  # in the middle of an epoch
    torch.manual_seed(0)
    model, path = Noisy(), tmp_path / "saved"
    expected = on_ranks(2, uninterrupted, path, asynchronous, model=model, updates=UPDATES)
    assert expected[0][0] != expected[1][0]
    torch.manual_seed(1)
    assert on_ranks(2, resumed, path, model=Noisy(), updates=UPDATES) == expected


def rewrite(path, **changes):
    file = path / "manifest.json"
    content = json.loads(file.read_text())
    for key, value in changes.items():
        if value is None:
            del content[key]
        else:
            content[key] = value
    file.write_text(json.dumps(content))


def test_a_checkpoint_of_the_first_format_is_read(tmp_path):
    save_checkpoint(tmp_path / "a", CutModel(StoreTransport(0, 1)), {"step": 3})
    lengths = {
        file.name: file.stat().st_size
        for file in (tmp_path / "a").iterdir()
        if file.name != "manifest.json"
    }
    rewrite(tmp_path / "a", version=1, files=lengths, layout=None)
    model = CutModel(StoreTransport(0, 1), filled=False)
    assert load_checkpoint(tmp_path / "a", model) == {"step": 3}
    model.assert_exact()


def test_a_format_of_the_future_is_refused_with_what_to_do(tmp_path):
    save_checkpoint(tmp_path / "a", CutModel(StoreTransport(0, 1)), {})
    rewrite(tmp_path / "a", version=3, files=None)
    with pytest.raises(CheckpointError, match="load it with the newer release that wrote it"):
        load_checkpoint(tmp_path / "a", CutModel(StoreTransport(0, 1)))
