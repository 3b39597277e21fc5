"""Orders of forward and backward, branches, recomputation: elsewhere a hang, or lost gradients."""

import copy

import pytest
import torch
from integration.user_reports.comparison import (
    POISONED,
    agree,
    each_form,
    gradients,
    pieces,
    values,
)
from packages.fsdp_runtime.tests.runtime.scenes import on_ranks
from torch import nn
from torch.utils.checkpoint import checkpoint

from sshsdp_fsdp_runtime import Cast, Sharding, Update
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD, AdamW

EXACT = {"rtol": 1e-10, "atol": 1e-12}


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x, *, both):
        return self.a(x).sum() + (self.b(x).sum() if both else 0)


@each_form
@pytest.mark.parametrize("world", [1, 2])
def test_a_layer_that_is_first_used_in_the_last_microbatch_gets_its_fp32_gradient(world, options):
    def scene(rank, model):
        x = torch.full((2, 4), rank.rank + 1.0, dtype=torch.bfloat16)
        model(x, both=False).backward()
        model(x, both=True).backward()
        return pieces(model)

    mean = 2 * sum(range(1, world + 1)) / world  # two rows of each rank's constant
    options = options | {"formats": [Cast("**", torch.bfloat16)], "groups": ["a", "b"]}
    for local in on_ranks(world, scene, model=TwoLayers(), **options):
        for name, factor in (("a.weight", 2), ("b.weight", 1)):
            _, piece = local[name]
            assert piece.dtype == torch.float32
            assert torch.equal(piece, torch.full_like(piece, factor * mean))


@each_form
def test_a_branch_that_one_rank_takes_counts_as_zeros_on_the_others(options):
    def scene(rank, model):
        model(torch.ones(2, 4), both=rank.rank == 0).backward()
        return pieces(model)["b.weight"][1]

    for piece in on_ranks(2, scene, model=TwoLayers(), groups=["a", "b"], **options):
        assert torch.equal(piece, torch.ones_like(piece))


class Experts(nn.Module):
    """Each token goes to the expert that a router, which is a constant here, prefers."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(4, 4)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x, bias):
        scores = (self.router(x) + bias).softmax(-1)
        best, index = scores.max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            chosen = (index == number).nonzero().flatten()
            if len(chosen):
                out = out.index_add(0, chosen, best[chosen, None] * expert(x[chosen]))
        return out


@each_form
def test_experts_without_tokens_stop_nobody_and_have_no_gradient_of_a_step_before(options):
    torch.manual_seed(0)
    model = Experts().double()
    x = torch.randn(2, 12, 4, dtype=torch.float64)
    balanced = 20 * torch.eye(4, dtype=torch.float64).repeat(3, 1)

    def loss(model, step, rank):
        only = torch.zeros(4, dtype=torch.float64)
        only[rank] = 20
        return model(x[rank], balanced if step == 0 else only).square().sum()

    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    expected = []
    for step in range(3):
        for rank in range(2):
            (loss(plain, step, rank) / 2).backward()
        expected.append({name: p.grad for name, p in plain.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()

    def scene(rank, ours):
        seen = []
        for step in range(3):
            loss(ours, step, rank.rank).backward()
            seen.append(pieces(ours))
            ours.optimizer.step()
            ours.optimizer.zero_grad()
        return seen, values(ours)

    updates = [Update("**", AdamW(lr=1e-2))]
    for seen, state in on_ranks(2, scene, model=model, updates=updates, **options):
        for local, wanted in zip(seen, expected, strict=True):
            idle = {name for name, gradient in wanted.items() if gradient is None}
            assert not any(local[name][1].any() for name in idle)
            agree({name: local[name] for name in local.keys() - idle}, wanted, **EXACT)
        assert idle == {f"experts.{i}.{n}" for i in (2, 3) for n in ("weight", "bias")}
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(state[name], value, **EXACT)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.Linear(6, 6)
        self.mlp = nn.Linear(6, 6)

    def forward(self, x):
        return x + self.mlp(torch.tanh(self.attn(x)))


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant):
        super().__init__()
        self.block = Nested()
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


@each_form
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("slots", [1, 2])
def test_two_forwards_of_a_checkpointed_block_go_through_one_backward(slots, reentrant, options):
    torch.manual_seed(0)
    model = Checkpointed(reentrant=reentrant).double()
    x = torch.randn(2, 2, 3, 6, dtype=torch.float64, requires_grad=True)

    def loss(model, _step, rank):
        return model(x[rank, 0]).square().sum() + model(x[rank, 1]).square().sum()

    def scene(rank, ours):
        loss(ours, 0, rank.rank).backward()
        return pieces(ours)

    groups = ["block.attn", "block.mlp"]
    for local in on_ranks(2, scene, model=model, groups=groups, slots=slots, **options):
        agree(local, gradients(model, 2, loss), **EXACT)


@each_form
@pytest.mark.parametrize("order", ["FFBB", "FFbB", "FBFB"])
def test_forwards_and_backwards_of_shared_layers_in_any_order(order, options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64)

    def loss(model, step, rank):
        return model((step + 1) * x[rank]).square().sum()

    def scene(rank, ours):
        waiting, microbatches = [], iter((0, 1))
        for letter in order:
            if letter == "F":
                waiting.append(loss(ours, next(microbatches), rank.rank))
            else:
                waiting.pop(-1 if letter == "b" else 0).backward()
        return pieces(ours)

    for local in on_ranks(2, scene, model=model, groups=["*"], slots=1, **options):
        agree(local, gradients(model, 2, loss, loss), **EXACT)


class Recomputing(nn.Module):
    def __init__(self, *, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.last = nn.Linear(6, 6)  # of the root group
        self.layers[1].idle = nn.Parameter(torch.ones(2))  # its group is never complete

    def forward(self, x):
        for layer in [*self.layers, self.last]:
            x = torch.tanh(checkpoint(layer, x, use_reentrant=self.reentrant))
        return x


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_leaves_nothing_gathered(reentrant):
    torch.manual_seed(0)
    model = Recomputing(reentrant=reentrant)
    x = torch.randn(3, 6).requires_grad_()
    plain = copy.deepcopy(model)
    plain(x).square().sum().backward()

    def scene(_rank, ours):
        ours(x).square().sum().backward()
        state = ours._sharded
        ready = [group.plan.label for group in state.weights.values() if group.ready]
        bytes_ = [root.tensor for root in state.buffers.roots if ".weights.slot" in root.name]
        return ready, all((slot == 0xFF).all() for slot in bytes_), len(bytes_), pieces(ours)

    for ready, released, slots, local in on_ranks(2, scene, model=model, **POISONED):
        assert (ready, released) == ([], True)
        assert slots >= 2
        del local["layers.1.idle"]
        agree(local, {name: p.grad for name, p in plain.named_parameters()})


@each_form
def test_four_backwards_before_a_step_all_count(options):
    torch.manual_seed(0)
    layers = [nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 3)]
    model = nn.Sequential(*layers).double()
    x = torch.randn(4, 2, 3, 5, dtype=torch.float64)

    def loss(model, step, rank):
        return model(x[step, rank]).square().mean()

    def scene(rank, ours):
        before = values(ours)
        for step in range(4):
            loss(ours, step, rank.rank).backward()
        ours.optimizer.step()
        after = values(ours)
        return {name: before[name] - value for name, value in after.items()}

    expected = gradients(model, 2, loss, loss, loss, loss)
    updates = [Update("**", SGD(lr=1.0))]
    for change in on_ranks(2, scene, model=model, groups=["*"], updates=updates, **options):
        for name, value in change.items():
            torch.testing.assert_close(value, expected[name], **EXACT)


@pytest.mark.parametrize("degrees", [(2, 2, 4), (1, 2, 4), (1, 1, 4)])
def test_the_last_microbatch_is_part_of_the_sum_over_all_ranks(degrees):
    def scene(rank, model):
        for microbatch in (1, 2):
            x = torch.full((2, 4), microbatch * (rank.rank + 1.0), dtype=torch.bfloat16)
            model(x).sum().backward()
        return pieces(model)["weight"][1]

    mean = 2 * (1 + 2) * sum((1, 2, 3, 4)) / 4
    options = {"formats": [Cast("**", torch.bfloat16)]}
    options |= {"sharding": [Sharding("**", Degrees(*degrees))]}
    for piece in on_ranks(4, scene, model=nn.Linear(4, 4), **options):
        assert piece.dtype == torch.float32
        assert torch.equal(piece, torch.full_like(piece, mean))
