"""Optimizers that work on matrices, sharded: the mathematics of the whole matrix or head."""

from dataclasses import astuple
from functools import cache

import pytest
import torch
from testing.ranks import run_ranks
from torch import nn
from torch.nn import functional

from sshsdp_fsdp_runtime import Sharding, Update, fully_shard, is_matrix
from sshsdp_shardchain import Degrees
from sshsdp_updates import AdamW, Muon, columns, heads
from sshsdp_zerosm import Topology, connect

HEADS, SIZE, STEPS = 3, 4, 2
WIDTH = HEADS * SIZE


class Block(nn.Module):
    """Attention without its softmax: what matters is which matrices there are."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 7)
        self.down = nn.Linear(7, WIDTH, bias=False)

    def forward(self, x):
        x = x + self.out(torch.tanh(self.query(x)))
        return x + self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return functional.linear(x, self.embedding.weight)


def fresh():
    torch.manual_seed(0)
    return Model().double()


def batch(step, rank):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randint(0, 11, (2, 6), generator=generator)


def loss_of(model, ids):
    return functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


MUON = Muon(lr=0.02, weight_decay=0.1, ns_dtype=torch.float64)
RULES = [
    Update("layers.*.query.weight", MUON, unit=heads(SIZE)),
    Update("layers.*.out.weight", MUON, unit=columns(SIZE)),
    Update("layers.**", MUON, where=is_matrix),
    Update("**", AdamW(lr=1e-2)),
]


@cache
def unsharded(world):
    """Plain PyTorch; heads are parameters of their own."""
    model = fresh()
    cuts = {layer.query.weight: 0 for layer in model.layers}
    cuts |= {layer.out.weight: 1 for layer in model.layers}
    parts = {p: [nn.Parameter(v.clone()) for v in p.split(SIZE, dim)] for p, dim in cuts.items()}
    matrices = [m for layer in model.layers for m in (layer.up.weight, layer.down.weight)]
    by_muon = {id(p) for p in [*matrices, *cuts]}
    heads_of_all = [part for own in parts.values() for part in own]
    muon = torch.optim.Muon([*matrices, *heads_of_all], lr=0.02, weight_decay=0.1)
    adamw = torch.optim.AdamW([p for p in model.parameters() if id(p) not in by_muon], lr=1e-2)
    for step in range(STEPS):
        for rank in range(world):
            (loss_of(model, batch(step, rank)) / world).backward()
        for parameter, dim in cuts.items():
            for part, grad in zip(parts[parameter], parameter.grad.split(SIZE, dim), strict=True):
                part.grad = grad
        with pytest.MonkeyPatch.context() as patch:
            # torch's iteration always is in BF16: here its one cast gives a copy in FP64.
            patch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
            muon.step()
        adamw.step()
        model.zero_grad()
        with torch.no_grad():
            for parameter, dim in cuts.items():
                parameter.copy_(torch.cat(parts[parameter], dim))
    return {name: value.clone() for name, value in model.state_dict().items()}


def train(rank, topology, degrees, form):
    transport = connect(rank.rank, rank.world, rank.store, timeout=30, topology=topology)
    model = fully_shard(
        fresh(),
        sharding=[Sharding("**", degrees)],
        updates=RULES,
        transport=transport,
        form=form,
        poison=form == "private",
    )
    for step in range(STEPS):
        loss_of(model, batch(step, rank.rank)).backward()
        model.optimizer.step()
        model.optimizer.zero_grad()
    state = {name: value.clone() for name, value in model.full_state_dict().items()}
    model.close()
    transport.close()
    return state


CASES = [
    (Topology.single(1), Degrees(1, 1, 1), "shared"),
    (Topology.single(2), Degrees(2, 2, 2), "shared"),
    (Topology.single(3), Degrees(1, 1, 3), "private"),
    (Topology.single(4), Degrees(2, 2, 4), "private"),
    (Topology.single(4), Degrees(1, 2, 2), "private"),
    (Topology.single(6), Degrees(1, 2, 6), "private"),
    (Topology(2, 2), Degrees(2, 2, 4), "shared"),
    (Topology(2, 2), Degrees(4, 4, 4), "private"),
    (Topology(3, 1), Degrees(3, 3, 3), "private"),
]


@pytest.mark.parametrize(
    ("topology", "degrees", "form"),
    CASES,
    ids=[f"{t}-{''.join(map(str, astuple(d)))}-{form}" for t, d, form in CASES],
)
def test_muon_per_head_and_per_matrix_equals_that_of_torch(topology, degrees, form):
    expected = unsharded(topology.world)
    for state in run_ranks(train, topology.world, topology, degrees, form, timeout=90):
        for name, value in expected.items():
            torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-11)
