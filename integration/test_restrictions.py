"""Conditions that the paper's system puts on its user, and what holds of them here.

``docs/restrictions.md`` has all of them, with the tests that other files hold.
"""

import copy
from functools import partial
from itertools import combinations

import pytest
import torch
from integration.user_reports.comparison import (
    POISONED,
    agree,
    each_form,
    gradients,
    pieces,
    same_training,
    sharded,
    trained,
    values,
)
from packages.fsdp_runtime.tests.runtime.scenes import ids, on_ranks
from testing.models import TiedModel
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from sshsdp_fsdp_runtime import Cast, ModelSpec, Sharding, Update, build_plan, fully_shard
from sshsdp_fsdp_runtime.plan import Field
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD
from sshsdp_zerosm import Topology

CUTS = [(1, 1, 1), (2, 2, 2), (1, 1, 2)]


class Partly(nn.Module):
    """Reaches some rows of each matrix, others in every call; one matrix in the first call only."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.rows = nn.Linear(4, 6)
        self.once = nn.Linear(4, 4)

    def forward(self, call):
        x = self.table(torch.tensor([call, call + 2]))
        if call == 0:
            x = torch.tanh(self.once(x))
        return functional.linear(x, self.rows.weight[call : call + 3]).square().sum()


@pytest.mark.parametrize("options", [POISONED, POISONED | {"slots": 1}], ids=["2 slots", "1 slot"])
def test_what_no_operation_has_written_of_a_gradient_is_zero_in_every_microbatch(options):
    """Whatever was left unwritten in a buffer is NaN."""
    torch.manual_seed(0)
    model = Partly().double()

    def loss(model, call, rank):
        return (rank + 1) * model(call)

    def scene(rank, ours):
        for call in range(3):
            loss(ours, call, rank.rank).backward()
        return pieces(ours)

    expected = gradients(model, 2, loss, loss, loss)
    groups = ["table", "rows", "once"]
    for local in on_ranks(2, scene, model=model, groups=groups, **options):
        unused = local.pop("rows.bias")[1]
        assert not unused.any()
        agree(local, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("topology", [Topology.single(4), Topology(2, 2)], ids=str)
@pytest.mark.parametrize("degrees", [(1, 1, 1), (2, 2, 2), (2, 2, 4), (4, 4, 4), (1, 2, 4)])
def test_gradients_in_bf16_and_their_sums_in_fp32_share_no_byte(degrees, topology):
    plan = build_plan(
        ModelSpec.of(TiedModel()),
        topology,
        sharding=[Sharding("**", Degrees(*degrees))],
        formats=[Cast("**", torch.bfloat16)],
    )
    for rank in range(4):
        own = []
        for group in plan.groups:
            for atom in (atom for atom in group.atoms if atom.trainable):
                kept = {field: plan.storage.span(atom, field, rank) for field in Field}
                assert kept[Field.GRADIENTS].dtype == torch.bfloat16
                assert kept[Field.ACCUMULATOR].dtype == kept[Field.MAIN_GRAD].dtype == torch.float32
                own += [
                    (group.module, s) for f, s in kept.items() if plan.storage.allocated(atom, f)
                ]
        assert all(s.offset + s.nbytes <= plan.storage.arena(s.arena).nbytes for _, s in own)
        for (group, one), (other_group, other) in combinations(own, 2):
            take_turns = ".slot" in one.arena and group != other_group
            if one.arena == other.arena and not take_turns:
                first, second = sorted((one, other), key=lambda span: span.offset)
                assert first.offset + first.nbytes <= second.offset


def test_a_parameter_on_another_device_is_refused():
    model = nn.Linear(2, 2)
    with FakeTensorMode():
        model.weight = nn.Parameter(torch.empty(2, 2, device="cuda"))
    with pytest.raises(RuntimeError, match=r"on the CPU in this version, got 'weight' on cuda"):
        fully_shard(model)


@each_form
@pytest.mark.parametrize("degrees", CUTS)
def test_gradients_add_to_those_of_the_last_step_unless_they_are_dropped(degrees, options):
    """As in torch, where leaving out zero_grad() is legal."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    x = torch.randn(3, 2, 4, 3, dtype=torch.float64)

    def loss(model, step, rank):
        return model(x[step, rank]).square().sum()

    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=1e-2)
    for step in range(3):
        for rank in range(2):
            (loss(plain, step, rank) / 2).backward()
        optimizer.step()

    def scene(rank, ours):
        for step in range(3):
            loss(ours, step, rank.rank).backward()
            ours.optimizer.step()
        return [values(ours)]

    rules = {
        "sharding": [Sharding("**", Degrees(*degrees))],
        "updates": [Update("**", SGD(lr=1e-2))],
    }
    same_training(on_ranks(2, scene, model=model, **rules, **options), [plain.state_dict()])


@pytest.mark.parametrize("degrees", [*CUTS, (2, 2, 4), (1, 1, 4), (4, 4, 4)])
def test_losses_over_different_numbers_of_tokens_are_normalized_by_all_of_them(degrees):
    """With ``average="sum"`` the user divides by the tokens of all ranks and microbatches."""
    world = max(2, degrees[2])
    tokens = torch.tensor(
        [[3 + 2 * rank + microbatch for rank in range(world)] for microbatch in (0, 1)]
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 11)).double()
    data = torch.randint(0, 11, (2, world, int(tokens.max()), 2))

    def loss(model, microbatch, rank):
        rows = data[microbatch, rank, : tokens[microbatch, rank]]
        scores = model(rows[:, 0])
        return functional.cross_entropy(scores, rows[:, 1], reduction="sum") / tokens.sum()

    plain = copy.deepcopy(model)
    rows = torch.cat([data[m, r, : tokens[m, r]] for m in range(2) for r in range(world)])
    functional.cross_entropy(plain(rows[:, 0]), rows[:, 1]).backward()

    def scene(rank, ours):
        loss(ours, 0, rank.rank).backward()
        ours.optimizer.grad_norm()  # finishes gradients that more will follow
        loss(ours, 1, rank.rank).backward()
        return pieces(ours)

    sharding = [Sharding("**", Degrees(*degrees))]
    expected = {name: p.grad for name, p in plain.named_parameters()}
    for local in on_ranks(world, scene, model=model, sharding=sharding, average="sum"):
        agree(local, expected, rtol=1e-10, atol=1e-12)


def test_means_over_ranks_are_the_default():
    torch.manual_seed(0)
    model = TiedModel().double()

    def loss(model, step, rank):
        return model(ids(step + rank)).square().mean()

    plain = trained(model, 3, loss, partial(torch.optim.SGD, lr=1e-2))
    same_training(sharded(model, 3, loss, updates=[Update("**", SGD(lr=1e-2))]), plain)
