"""Lion against the program of its paper, and its authors' code where that is installed."""

import pytest
import torch

from sshsdp_updates import Lion


def trained(cluster, rule, start, gradients, world):
    ours = cluster([(rule, {"w": start})], world=world)
    for gradient in gradients:
        ours.set_gradients({"w": gradient}, {"w": start.numel()})
        ours.run(lambda optimizer: optimizer.step())
    return ours.weight("w", start.numel())


def scene(decay, steps=20):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(37, generator=generator, dtype=torch.float64)
    gradients = [torch.randn(37, generator=generator, dtype=torch.float64) for _ in range(steps)]
    return Lion(0.01, (0.9, 0.95), decay), start, gradients


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("world", [1, 3])
def test_it_is_the_program_of_the_paper(cluster, decay, world):
    rule, start, gradients = scene(decay)
    weight, average = start.clone(), torch.zeros_like(start)
    for gradient in gradients:
        direction = torch.sign(0.9 * average + 0.1 * gradient)
        weight = weight - 0.01 * (direction + decay * weight)
        average = 0.95 * average + 0.05 * gradient
    found = trained(cluster, rule, start, gradients, world)
    torch.testing.assert_close(found, weight, rtol=1e-12, atol=1e-12)


@pytest.mark.full
def test_it_is_the_authors_code(cluster):
    lion_pytorch = pytest.importorskip("lion_pytorch")
    rule, start, gradients = scene(0.1)
    weight = torch.nn.Parameter(start.clone())
    oracle = lion_pytorch.Lion([weight], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    for gradient in gradients:
        weight.grad = gradient.clone()
        oracle.step()
    found = trained(cluster, rule, start, gradients, 1)
    torch.testing.assert_close(found, weight.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("change", [{"lr": -1.0}, {"betas": (1.0, 0.9)}, {"weight_decay": -0.1}])
def test_values_that_cannot_be_are_refused(change):
    with pytest.raises(ValueError, match="expected"):
        Lion(**change)
