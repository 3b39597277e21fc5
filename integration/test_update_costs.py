"""What happens once per update happens once, whatever the number of microbatches.

A rank keeps its shard of the weights between updates: weight preparation (the cast) and the gather
that completes the shard from the parts that other ranks update run after a step; gradients cross
between the holders of ZeRO-1 parts when a step needs them.
"""

from functools import cache

import pytest
import torch
from testing.ledger import Kind, Ledger
from testing.ranks import Rank, run_ranks
from torch import nn

from sshsdp_fsdp_runtime import Cast, Sharding, fully_shard
from sshsdp_shardchain import Degrees, Level
from sshsdp_zerosm import connect

WORLD, WIDTH, LAYERS, STEPS = 4, 16, 3, 2
NESTED = [(2, 2, 4), (1, 2, 4), (2, 2, 2)]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def costs(rank: Rank, degrees, microbatches):
    """Per step of one rank: bytes cast, pulled and reduced; and the chunks that the plan gives."""
    torch.manual_seed(0)
    transport = connect(rank.rank, rank.world, rank.store, timeout=20)
    model = fully_shard(
        Model(),
        sharding=[Sharding("**", Degrees(*degrees))],
        formats=[Cast("**", torch.bfloat16)],
        transport=transport,
        form="private",
    )
    main = next(
        root for root in model._sharded.buffers.roots if root.name.endswith(".main_weights")
    )
    found = []
    for step in range(STEPS):
        with Ledger({"main_weights": main.tensor}, transport.counters) as ledger:
            for microbatch in range(microbatches):
                seed = torch.manual_seed(100 * step + 10 * microbatch + rank.rank)
                x = torch.randn(3, WIDTH, generator=seed, dtype=torch.bfloat16)
                model(x).square().mean().backward()
            model.optimizer.step()
            model.optimizer.zero_grad()
        casts = ledger.read("main_weights", {Kind.COPY})
        counted = dict(ledger.counted)
        found.append(
            (
                [entry.written_bytes for entry in casts],
                counted["pulled_bytes"],
                counted["reduced_bytes"],
            )
        )
    chains = [atom.layout.chain for atom in model.plan.atoms]
    chunks = {level: [chain.range(level, rank.rank).numel for chain in chains] for level in Level}
    model.close()
    transport.close()
    return found, chunks


@cache
def measured(degrees, microbatches):
    return run_ranks(costs, WORLD, degrees, microbatches)


@pytest.mark.parametrize("degrees", NESTED)
def test_casts_and_gathers_of_shards_come_once_per_update(degrees):
    zero3, _, zero1 = degrees
    few, many = (measured(degrees, microbatches) for microbatches in (1, 3))
    for (once, chunks), (thrice, _) in zip(few, many, strict=True):
        prepared = [2 * numel for numel in chunks[Level.ZERO1]]  # BF16
        assert [casts for casts, *_ in once] == [casts for casts, *_ in thrice] == [prepared] * 2
        # A microbatch gathers for its forward and for its backward; an update completes shards.
        full, shard, own = (
            2 * sum(chunks[level]) for level in (Level.FULL, Level.ZERO3, Level.ZERO1)
        )
        completed = shard - own
        if zero1 < WORLD:  # each replica sums half of the gradients, and pulls the other half
            completed += 4 * sum(chunks[Level.ZERO1]) // 2
        per_pass = 2 * full if zero3 > 1 else 0
        assert [pulled for _, pulled, _ in once] == [completed + per_pass] * STEPS
        assert [pulled for _, pulled, _ in thrice] == [completed + 3 * per_pass] * STEPS


@pytest.mark.parametrize("degrees", NESTED)
def test_sums_cross_between_holders_of_zero1_parts_once_per_step(degrees):
    _, zero2, zero1 = degrees
    few, many = (measured(degrees, microbatches) for microbatches in (1, 3))
    for (once, chunks), (thrice, _) in zip(few, many, strict=True):
        sums, parts = (sum(chunks[level]) for level in (Level.ZERO2, Level.ZERO1))
        per_pass = 2 * sums * zero2  # BF16 from every member of the ZeRO-2 group
        outer = 4 * parts * (zero1 // zero2) if zero1 != zero2 else 0
        if zero1 < WORLD:  # two replicas: each sums half of the gradients of both
            outer += 4 * parts
        assert [reduced for *_, reduced in once] == [per_pass + outer] * STEPS
        assert [reduced for *_, reduced in thrice] == [3 * per_pass + outer] * STEPS
