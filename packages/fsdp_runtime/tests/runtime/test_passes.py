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

WIDTH, BLOCKS, STEPS = 6, 5, 3


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


def train(rank: Rank, model, seed, form, slots, degrees, together, topology=None, steps=STEPS):
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
    for step in range(steps):
        order = losses(sharded, seed + step, rank.rank, together)
        for loss in reversed(order) if step % 2 else order:
            loss.backward()
        sharded.optimizer.step()
        sharded.optimizer.zero_grad()
    result = sharded.full_state_dict()
    sharded.close()
    transport.close()
    return result


def plain(model, seed, world, steps=STEPS):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
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
    steps = 2  # backwards in the order of forwards, and in the other
    chains = [(per_node, per_node, world), (1, world, world), (1, 1, world)]
    torch.manual_seed(seed)
    model = Branching().double()

    def main(rank):
        return [
            train(rank, model, seed, "auto", slots, Degrees(*chain), slots == 2, topology, steps)
            for slots, chain in enumerate(chains, 1)
        ]

    expected = plain(copy.deepcopy(model), seed, world, steps)
    for states in run_ranks(main, world, timeout=60):
        for state in states:
            for name, value in expected.items():
                torch.testing.assert_close(state[name], value, rtol=1e-10, atol=1e-12)


ROUTE = [(0, "plain"), (1, "weight only"), (0, "non-reentrant"), (2, "plain"), (1, "reentrant")]
# F, B: forward and backward of a microbatch; R: a backward that keeps the graph; S: one of the sum
# of both losses; N: a forward without gradients.
ORDERS = [
    "F0 B0 F1 B1",
    "F0 F1 B0 B1",
    "F0 F1 B1 B0",
    "F0 F1 S",
    "F0 R0 F1 B1 B0",
    "N F0 N F1 N B1 N B0",
]


def in_order(model, order, rank):
    """Run what `order` says; two microbatches that go through shared layers twice each."""
    waiting = {}
    for what, which in [(word[0], word[1:]) for word in order.split()]:
        if what == "F":
            x = inputs(3, int(which), rank)
            waiting[which] = model(x, ROUTE[int(which) :]).square().mean()
        elif what == "N":
            with torch.no_grad():
                model(inputs(4, 0, rank), ROUTE[::-1])
        elif what == "S":
            (waiting["0"] + waiting["1"]).backward()
        else:
            waiting[which].backward(retain_graph=what == "R")


@pytest.mark.parametrize("form", ["shared", "private"])
def test_forwards_and_backwards_over_shared_layers_come_in_any_order(form):
    torch.manual_seed(0)
    model = Branching().double()
    cases = [(order, slots) for order in ORDERS for slots in (1, 2, 3)]

    def main(rank):
        transport = connect(rank.rank, rank.world, rank.store, timeout=20)
        results = []
        for order, slots in cases:
            ours = fully_shard(
                copy.deepcopy(model),
                transport=transport,
                form=form,
                slots=slots,
                poison=form == "private",
            )
            in_order(ours, order, rank.rank)
            grads = {name: p.grad for name, p in ours.named_parameters()}
            results.append({n: (g.fragment.start, g.local.clone()) for n, g in grads.items()})
            ours.close()
        transport.close()
        return results

    answers = run_ranks(main, 2, timeout=120)
    for index, (order, _slots) in enumerate(cases):
        plain = [copy.deepcopy(model) for _ in range(2)]
        for rank in range(2):
            in_order(plain[rank], order, rank)
        for results in answers:
            for name, (start, piece) in results[index].items():
                given = [m.get_parameter(name).grad for m in plain]
                zeros = torch.zeros_like(model.get_parameter(name))
                whole = sum((g for g in given if g is not None), zeros) / 2
                expected = whole.flatten()[start : start + piece.numel()]
                torch.testing.assert_close(piece, expected, rtol=1e-10, atol=1e-12)


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
