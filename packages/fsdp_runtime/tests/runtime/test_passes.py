"""Any order of forwards and backwards, on any rank, sums the gradients that plain PyTorch sums."""

import copy
import random

import pytest
import torch
from testing.ranks import Rank, RankError, run_ranks
from torch import nn
from torch.distributed import PrefixStore
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from sshsdp_fsdp_runtime import Sharding, Update, fully_shard
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD
from sshsdp_zerosm import Topology, connect

WIDTH, BLOCKS = 6, 5


class Branching(nn.Module):
    """Runs the blocks that its input names, in that order, each way of use included."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)) for _ in range(BLOCKS)
        )
        self.mix = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x, route):
        for index, way in route:
            layer = self.layers[index]
            if way == "plain":
                x = x + layer(x)
            elif way == "weight only":  # a use that no module's forward announces
                x = x + functional.linear(x, layer[0].weight)
            else:
                x = x + checkpoint(layer, x, use_reentrant=way == "reentrant")
        return x * self.mix


WAYS = ("plain", "plain", "weight only", "reentrant", "non-reentrant")


def routes(seed: int, microbatches: int, rank: int) -> list[list[tuple[int, str]]]:
    dice = random.Random(100 * seed + rank)
    return [
        [(dice.randrange(BLOCKS), dice.choice(WAYS)) for _ in range(dice.randrange(5))]
        for _ in range(microbatches)
    ]


def inputs(seed: int, microbatch: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 31 * microbatch + 7 * rank)
    return torch.randn(3, WIDTH, generator=generator, dtype=torch.float64).requires_grad_()


def losses(model, seed, rank, together):
    """One loss per backward: of single microbatches, or of two in one graph."""
    parts = [
        model(inputs(seed, index, rank), route).square().mean()
        for index, route in enumerate(routes(seed, 4, rank))
    ]
    return [parts[0] + parts[1], parts[2] + parts[3]] if together else parts


def train(rank: Rank, model, seed, form, slots, degrees, together, topology=None):
    store = PrefixStore(f"{seed} {slots}", rank.store)
    transport = connect(rank.rank, rank.world, store, timeout=20, topology=topology)
    sharded = fully_shard(
        copy.deepcopy(model),
        sharding=[Sharding("**", degrees)],
        updates=[Update("**", SGD(lr=0.1))],
        transport=transport,
        form=form,
        slots=slots,
        poison=form == "private",
    )
    for step in range(3):
        order = losses(sharded, seed + step, rank.rank, together)
        for loss in reversed(order) if step % 2 else order:
            loss.backward()
        sharded.optimizer.step()
        sharded.optimizer.zero_grad()
    result = sharded.full_state_dict()
    sharded.close()
    transport.close()
    return result


def plain(model, seed, world):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        for rank in range(world):
            for loss in losses(model, seed + step, rank, together=False):
                (loss / world).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("seed", range(8))
def test_ranks_may_take_different_branches_in_any_order(seed):
    dice = random.Random(seed)
    world = dice.choice([2, 3, 4])
    zero1 = dice.choice([1, world, world])
    zero2 = dice.choice([1, zero1])
    degrees = Degrees(dice.choice([1, zero2]), zero2, zero1)
    if seed == 0:
        world, degrees = 4, Degrees(2, 2, 4)
    form = dice.choice(["shared", "private"])
    slots = dice.choice([1, 2, 3])
    torch.manual_seed(seed)
    model = Branching().double()
    expected = plain(copy.deepcopy(model), seed, world)
    together = dice.random() < 0.5
    for state in run_ranks(train, world, model, seed, form, slots, degrees, together, timeout=60):
        for name, value in expected.items():
            torch.testing.assert_close(state[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("topology", [Topology(2, 2), Topology(3, 1)], ids=["2x2", "3x1"])
def test_so_may_ranks_of_several_nodes_that_gather_within_them(topology):
    world, seed, per_node = topology.world, 20, topology.ranks_per_node
    chains = [(per_node, per_node, world), (1, world, world), (1, 1, world)]
    torch.manual_seed(seed)
    model = Branching().double()

    def main(rank):
        return [
            train(rank, model, seed, "auto", slots, Degrees(*chain), slots == 2, topology)
            for slots, chain in enumerate(chains, 1)
        ]

    expected = plain(copy.deepcopy(model), seed, world)
    for states in run_ranks(main, world, timeout=60):
        for state in states:
            for name, value in expected.items():
                torch.testing.assert_close(state[name], value, rtol=1e-10, atol=1e-12)


def skip_a_backward(rank: Rank, model):
    transport = connect(rank.rank, rank.world, rank.store, timeout=20)
    sharded = fully_shard(copy.deepcopy(model), transport=transport)
    for index in range(3 - rank.rank):
        sharded(inputs(0, index, 0), [(0, "plain"), (1, "plain")]).sum().backward()
    sharded.optimizer.step()


def test_a_rank_that_skips_a_backward_is_a_named_error_everywhere():
    with pytest.raises(RankError) as caught:
        run_ranks(skip_a_backward, 2, Branching().double(), timeout=15)
    text = str(caught.value)
    assert text.count("expected every rank to call backward equally often") >= 2
    assert "rank 0" in text
    assert "rank 1" in text
