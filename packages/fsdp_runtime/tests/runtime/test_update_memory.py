"""What an update takes beside its operands is what the plan says, rank by rank."""

import pytest
import torch
from testing.allocations import Allocations
from testing.ranks import run_ranks
from torch import nn

from sshsdp_fsdp_runtime import Pack, Update, fully_shard, is_matrix
from sshsdp_updates import AdamW, Muon, NorMuon, columns, heads
from sshsdp_zerosm import connect

SIZE, HEADS = 8, 5
WIDTH = SIZE * HEADS


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        x = x + self.out(torch.tanh(self.query(x)) * self.key(x))
        return x + self.down(torch.tanh(self.up(x)))


def updates(rule):
    return [
        Update("*.query.weight", rule, unit=heads(SIZE)),
        Update("*.key.weight", rule, unit=heads(SIZE)),
        Update("*.out.weight", rule, unit=columns(SIZE)),
        Update("**", rule, where=is_matrix),
        Update("**", AdamW()),
    ]


def step(rank, rule):
    """Reserved and allocated bytes of a step as they are, and as forecast."""
    transport = connect(rank.rank, rank.world, rank.store, timeout=30)
    torch.manual_seed(0)
    model = fully_shard(
        nn.Sequential(Block(), Block()),
        groups=["*"],
        packs=[Pack("*", ["query", "key"])],
        updates=updates(rule),
        transport=transport,
    )
    for _ in range(2):  # the first step makes views that later ones use
        model(torch.randn(3, WIDTH)).square().mean().backward()
        with Allocations() as allocations:
            model.optimizer.step()
        model.optimizer.zero_grad()
    reserved = sum(a.nbytes for name, a in transport._arenas.items() if "temporaries" in name)
    forecast = {row.role: row.local for row in model.plan.forecast().rows}
    cut = sum(unit.cut for made in model.plan.update_plans for unit in made.units)
    model.close()
    transport.close()
    return reserved, allocations.peak, forecast, cut


@pytest.mark.parametrize(
    "rule",
    [
        Muon(ns_dtype=torch.float32),
        Muon(),
        Muon(ns_dtype=torch.float64, nesterov=False, ns_coefficients="cubic5"),
        NorMuon(ns_dtype=torch.float32),
    ],
    ids=["fp32", "bf16", "fp64", "normuon"],
)
def test_an_update_takes_what_the_plan_says(rule):
    for reserved, peak, forecast, cut in run_ranks(step, 3, rule):
        assert cut > 0
        assert reserved == forecast["update temporaries"] > 0
        assert peak <= forecast["update scratch"]
        assert peak >= 0.3 * forecast["update scratch"]  # else the forecast would say nothing
