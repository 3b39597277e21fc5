"""Moving averages of weights, each rank its own pieces, without a copy of the model."""

import copy

import torch
from integration.user_reports.comparison import each_form, values
from packages.fsdp_runtime.tests.runtime.scenes import ids, on_ranks
from testing.models import TiedModel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sshsdp_fsdp_runtime import ExponentialAverage, Sharding, Update
from sshsdp_shardchain import Degrees
from sshsdp_updates import AdamW

DECAY, STEPS = 0.7, 4


def reference(model, world):
    """Averages and weights after all steps by torch's own class, and scores of the averages."""
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-2)
    averaged = AveragedModel(plain, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    averaged.update_parameters(plain)
    for step in range(STEPS):
        for rank in range(world):
            (plain(ids(10 * step + rank)).square().mean() / world).backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(plain)
    return averaged.module.state_dict(), plain.state_dict(), averaged.module(ids()).detach()


@each_form
def test_averages_of_pieces_are_those_of_the_whole_model_and_can_be_evaluated(options):
    torch.manual_seed(0)
    model = TiedModel().double()

    def scene(rank, ours):
        average = ExponentialAverage(ours, DECAY)
        average.update()
        for step in range(STEPS):
            ours(ids(10 * step + rank.rank)).square().mean().backward()
            ours.optimizer.step()
            ours.optimizer.zero_grad()
            average.update()
        with average.applied(), torch.no_grad():
            inside = values(ours), ours(ids())
        return *inside, values(ours)

    for degrees in [(3, 3, 3), (1, 1, 3)]:
        sharding = [Sharding("**", Degrees(*degrees))]
        updates = [Update("**", AdamW(lr=3e-2))]
        wanted, weights, scores = reference(model, 3)
        for averages, shown, after in on_ranks(
            3, scene, model=model, sharding=sharding, updates=updates, **options
        ):
            for name, value in wanted.items():
                torch.testing.assert_close(averages[name], value, rtol=1e-10, atol=1e-12)
                torch.testing.assert_close(after[name], weights[name], rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(shown, scores, rtol=1e-10, atol=1e-12)
