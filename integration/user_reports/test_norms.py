"""Gradient norms and clipping: one number for the whole model, the same on every rank."""

import math

import pytest
import torch
from integration.user_reports.comparison import unequal, values
from packages.fsdp_runtime.tests.runtime.scenes import ids, on_ranks
from testing.models import TiedModel
from torch import nn
from torch.nn import functional

from sshsdp_fsdp_runtime import Sharding
from sshsdp_shardchain import Degrees

clip = torch.nn.utils.clip_grad_norm_


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_norm_is_that_of_the_whole_gradient_on_every_rank(world):
    def scene(_rank, model):
        model(torch.ones(1, 4)).sum().backward()
        return model.optimizer.grad_norm().item(), clip(model.parameters(), 1e9).item()

    assert on_ranks(world, scene, model=nn.Linear(4, 4, bias=False)) == [(4.0, 4.0)] * world


@pytest.mark.parametrize("foreach", [False, True])
def test_plain_parameters_beside_sharded_ones_are_part_of_the_norm(foreach):
    """Both are scaled; sixteen ones and nine ones have a norm of five."""

    def scene(_rank, model):
        plain = nn.Parameter(torch.zeros(3, 3))
        (model(torch.ones(1, 4)).sum() + plain.sum()).backward()
        norm = clip([*model.parameters(), plain], 1.0, foreach=foreach).item()
        return norm, plain.grad.norm().item(), model.weight.grad.norm().item()

    for norms in on_ranks(2, scene, model=nn.Linear(4, 4, bias=False)):
        assert norms == pytest.approx((5.0, 3 / 5, 4 / 5), rel=1e-5)


def test_an_infinite_gradient_on_one_rank_is_an_infinite_norm_on_all():
    def scene(rank, model):
        x = torch.ones(1, 4)
        if rank.rank == 1:
            x[0, 2] = float("inf")
        before = values(model)
        model(x).sum().backward()
        norm = model.optimizer.clip_grad_norm_(1.0).item()
        others = model.weight.grad.local.isnan().any().item()
        model.optimizer.step()
        return norm, others, model.optimizer.last_step_skipped, unequal(before, values(model))

    results = on_ranks(2, scene, model=nn.Linear(4, 4, bias=False))
    assert results == [(math.inf, False, True, [])] * 2


def test_one_norm_covers_parameters_that_are_sharded_over_different_ranks():
    sharding = [
        Sharding("layers.0.**", Degrees.for_hsdp(2)),
        Sharding("layers.1.**", Degrees(1, 2, 4)),
        Sharding("**", Degrees.for_zero3(4)),
    ]
    torch.manual_seed(0)
    plain = TiedModel().double()
    for rank in range(4):
        (functional.cross_entropy(plain(ids(rank)).flatten(0, 1), ids(0).flatten()) / 4).backward()
    expected = torch.nn.utils.get_total_norm(
        [p.grad for p in plain.parameters() if p.grad is not None]
    )

    def scene(rank, model):
        scores = model(ids(rank.rank)).flatten(0, 1)
        functional.cross_entropy(scores, ids(0).flatten()).backward()
        theirs = clip(model.parameters(), 1e9)
        return theirs.item(), model.optimizer.clip_grad_norm_(0.1).item()

    for norms in on_ranks(4, scene, sharding=sharding):
        assert norms == pytest.approx((expected.item(), expected.item()), rel=1e-12)
