"""The example that composes the four packages trains as plain PyTorch does."""

import pytest
import torch
from integration.examples import compose_your_own as example
from testing.ranks import run_ranks

from sshsdp_zerosm import connect


def composed(rank):
    model = example.fresh_model()
    with connect(rank.rank, rank.world, rank.store, timeout=60) as transport:
        losses = example.train(model, transport)
        transport.barrier()  # the others' last parts of the weights are complete
        return losses, {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


def plain(world):
    """All ranks' batches in one process."""
    model = example.fresh_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(example.STEPS):
        totals = [0.0] * world
        for microbatch in range(example.MICROBATCHES):
            for rank in range(world):
                loss = example.loss_of(model, rank, step, microbatch)
                (loss / world).backward()
                totals[rank] += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(totals)
    return losses, model


@pytest.mark.parametrize("world", [1, 2, 3])
def test_it_learns_what_plain_pytorch_learns(world):
    losses, model = plain(world)
    assert sum(losses[-1]) < 0.5 * sum(losses[0])
    for rank, (own, weights) in enumerate(run_ranks(composed, world)):
        assert own == pytest.approx([totals[rank] for totals in losses], rel=1e-10)
        for name, parameter in model.named_parameters():
            value = torch.from_numpy(weights[name])
            difference = (value - parameter).norm() / parameter.norm()
            assert difference <= 1e-10, name
