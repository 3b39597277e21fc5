"""Ranks that clip or step differently all hear of it; else each would treat its part that way."""

import pytest
import torch

from sshsdp_updates import SGD, AdamW

WORLD, NUMEL = 3, 10


def with_gradients(cluster):
    tensors = {"p0": torch.zeros(NUMEL), "p1": torch.zeros(NUMEL)}
    groups = [(AdamW(lr=0.1), {"p0": tensors["p0"]}), (SGD(lr=0.1), {"p1": tensors["p1"]})]
    ours = cluster(groups, world=WORLD)
    ours.set_gradients({name: torch.ones(NUMEL) for name in tensors}, dict.fromkeys(tensors, NUMEL))
    for steps in ours.steps:
        steps.changed = False
    return ours


def on_rank_1(ours, change):
    """Calls `change` with the optimizer of one rank."""
    return lambda optimizer: change(optimizer) if optimizer is ours.optimizers[1] else None


def error_of(optimizer, call):
    try:
        call(optimizer)
    except RuntimeError as error:
        return str(error)
    return None


def set_group(index, **values):
    return lambda optimizer: optimizer.param_groups[index].update(values)


@pytest.mark.parametrize(
    "change",
    [
        set_group(0, lr=0.2),
        set_group(1, lr=0.1 + 1e-17 + 1e-16),
        set_group(0, betas=(0.9, 0.99)),
        lambda optimizer: optimizer.clip_grad_norm_(1.0),
        lambda optimizer: optimizer.grad_norm(),
    ],
    ids=["lr", "lr in the last bit", "betas", "clip", "norm"],
)
def test_a_step_that_one_rank_makes_differently_is_refused_on_all(cluster, change):
    ours = with_gradients(cluster)

    def main(optimizer):
        def call(optimizer):
            on_rank_1(ours, change)(optimizer)
            optimizer.step()

        return error_of(optimizer, call)

    texts = set(ours.run(main))
    assert len(texts) == 1
    assert "expected every rank to clip and step alike" in texts.pop()
    assert torch.equal(ours.weight("p0", NUMEL), torch.zeros(NUMEL))
    assert torch.equal(ours.weight("p1", NUMEL), torch.zeros(NUMEL))
    assert not any("begin" in steps.calls for steps in ours.steps)


def test_norms_that_differ_in_what_they_are_clipped_to_are_refused(cluster):
    ours = with_gradients(cluster)
    bounds = {id(optimizer): 1.0 + rank for rank, optimizer in enumerate(ours.optimizers)}
    texts = ours.run(lambda o: error_of(o, lambda o: o.clip_grad_norm_(bounds[id(o)])))
    assert all("another max_norm" in text for text in texts)
    assert torch.equal(ours.gradient("p0", NUMEL), torch.ones(NUMEL))


def test_what_differed_after_the_norm_was_known_is_found_by_the_next_step(cluster):
    ours = with_gradients(cluster)
    ours.run(lambda optimizer: optimizer.grad_norm())
    ours.run(on_rank_1(ours, lambda optimizer: optimizer.clip_grad_norm_(0.5)))
    ours.run(lambda optimizer: optimizer.step())
    texts = ours.run(lambda optimizer: error_of(optimizer, lambda o: o.step()))
    assert all("since the last step" in text for text in texts)


def test_a_loop_that_mends_it_goes_on(cluster):
    ours = with_gradients(cluster)
    ours.run(on_rank_1(ours, set_group(0, lr=0.2)))
    assert all(ours.run(lambda optimizer: error_of(optimizer, lambda o: o.step())))
    ours.run(on_rank_1(ours, set_group(0, lr=0.1)))
    for _ in range(2):
        ours.run(lambda optimizer: optimizer.clip_grad_norm_(1.0))
        ours.run(lambda optimizer: optimizer.step())
    assert ours.weight("p0", NUMEL).abs().min() > 0.1


def test_rates_that_are_tensors_are_compared_by_value(cluster):
    ours = with_gradients(cluster)
    ours.run(lambda optimizer: set_group(0, lr=torch.tensor(0.1))(optimizer))
    ours.run(lambda optimizer: optimizer.step())
    ours.run(on_rank_1(ours, lambda optimizer: optimizer.param_groups[0]["lr"].fill_(0.2)))
    assert all(ours.run(lambda optimizer: error_of(optimizer, lambda o: o.step())))
