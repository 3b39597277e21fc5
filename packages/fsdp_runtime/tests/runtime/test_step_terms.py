"""Loops that treat one rank's step differently hear of it before weights change."""

import pytest
import torch

from .scenes import ids, on_ranks_in_turn


def a_scheduler_on_one_rank(rank, model):
    scheduler = torch.optim.lr_scheduler.ExponentialLR(model.optimizer, 0.5)
    for _ in range(2):
        model(ids(rank.rank)).sum().backward()
        model.optimizer.step()
        model.optimizer.zero_grad()
        if rank.rank == 0:
            scheduler.step()


def clipping_on_one_rank(rank, model):
    model(ids(rank.rank)).sum().backward()
    if rank.rank == 1:
        model.optimizer.clip_grad_norm_(1e-3)
    model.optimizer.step()


@pytest.mark.parametrize("loop", [a_scheduler_on_one_rank, clipping_on_one_rank])
def test_it_is_one_error_everywhere_and_the_model_goes_on(loop):
    def scene(rank, model):
        with pytest.raises(RuntimeError, match="every rank to clip and step alike"):
            loop(rank, model)
        model.optimizer.zero_grad()
        for group in model.optimizer.param_groups:
            group["lr"] = 1e-3
        model(ids(rank.rank)).sum().backward()
        model.optimizer.clip_grad_norm_(1.0)
        model.optimizer.step()

    on_ranks_in_turn(2, scene, [{}, {"form": "private", "poison": True}])
