"""The norm counts every logical element once; clipping is torch's."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sshsdp_updates import SGD, AdamW


def random_tensors(numels, seed, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    return {f"p{i}": torch.randn(n, generator=random, dtype=dtype) for i, n in enumerate(numels)}


def with_gradients(cluster, gradients, **options):
    tensors = {n: torch.zeros_like(g) for n, g in gradients.items()}
    ours = cluster([(SGD(), tensors)], **options)
    ours.set_gradients(gradients, {n: g.numel() for n, g in gradients.items()})
    return ours


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
    st.sampled_from([(1, 1), (2, 2), (3, 3), (4, 2), (6, 3), (8, 8), (4, 1)]),
    st.sampled_from([1, 4]),
    st.sampled_from([1e-3, 0.5, 100.0]),
    st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_norm_and_clipping_equal_torch(cluster, numels, worlds, align, max_norm, seed):
    gradients = random_tensors(numels, seed)
    world, zero1 = worlds
    ours = with_gradients(cluster, gradients, world=world, zero1=zero1, align=align)
    whole = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients.values()]
    for parameter, gradient in zip(whole, gradients.values(), strict=True):
        parameter.grad = gradient.clone()
    expected = torch.nn.utils.clip_grad_norm_(whole, max_norm)
    norms = ours.run(lambda optimizer: optimizer.clip_grad_norm_(max_norm))
    assert len({norm.item() for norm in norms}) == 1
    torch.testing.assert_close(norms[0], expected, rtol=1e-12, atol=0)
    for name, parameter in zip(gradients, whole, strict=True):
        clipped = ours.gradient(name, parameter.numel())
        torch.testing.assert_close(clipped, parameter.grad, rtol=1e-12, atol=0)
    assert ours.padding_is_untouched()


def test_float32_norm_of_many_elements_is_accurate(cluster):
    gradients = {"p": torch.full((3_000_000,), 1e-3)}
    ours = with_gradients(cluster, gradients)
    exact = gradients["p"].double().norm().item()
    assert ours.optimizers[0].grad_norm().item() == pytest.approx(exact, rel=1e-6)


def test_members_without_gradient_are_left_out(cluster):
    gradients = random_tensors([5, 9], 0)
    ours = with_gradients(cluster, gradients)
    ours.set_gradients({"p0": gradients["p0"], "p1": None}, {"p0": 5, "p1": 9})
    norm = ours.optimizers[0].clip_grad_norm_(0.1)
    torch.testing.assert_close(norm, gradients["p0"].norm())
    assert ours.gradient("p1", 9).isnan().all()


def test_norm_without_any_gradient_is_zero(cluster):
    ours = with_gradients(cluster, random_tensors([5], 0))
    ours.set_gradients({"p0": None}, {"p0": 5})
    assert ours.optimizers[0].clip_grad_norm_(1.0) == 0


def test_small_norm_leaves_every_bit(cluster):
    gradients = random_tensors([50], 0, torch.float32)
    ours = with_gradients(cluster, gradients)
    ours.optimizers[0].clip_grad_norm_(1e6)
    assert torch.equal(ours.gradient("p0", 50), gradients["p0"])


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_nonfinite_norm_is_returned_on_every_rank_and_scales_nothing(cluster, value):
    gradients = random_tensors([8], 0)
    gradients["p0"][6] = value
    ours = with_gradients(cluster, gradients, world=2)
    norms = ours.run(lambda optimizer: optimizer.clip_grad_norm_(1.0))
    assert not any(norm.isfinite() for norm in norms)
    assert torch.equal(ours.gradient("p0", 8)[:6], gradients["p0"][:6])


def test_clip_and_step_share_one_measurement(cluster):
    ours = with_gradients(cluster, random_tensors([8], 0), world=2)
    for steps in ours.steps:
        steps.changed = False
    ours.run(lambda optimizer: optimizer.grad_norm())
    ours.run(lambda optimizer: optimizer.clip_grad_norm_(1.0))
    ours.run(lambda optimizer: optimizer.step())
    assert ours.reducer.calls == 1


@pytest.mark.parametrize("changed", [True, None])
def test_gradients_that_may_have_changed_are_measured_again(cluster, changed):
    ours = with_gradients(cluster, random_tensors([8], 0))
    (optimizer,) = ours.optimizers
    before = optimizer.grad_norm()
    ours.steps[0].changed = changed
    ours.set_gradients({"p0": torch.ones(8)}, {"p0": 8})
    assert optimizer.grad_norm().item() == pytest.approx(math.sqrt(8))
    assert before != optimizer.grad_norm()


@pytest.mark.parametrize("change", ["step", "zero_grad"])
def test_step_and_zero_grad_end_a_measurement(cluster, change):
    ours = with_gradients(cluster, random_tensors([8], 0))
    (optimizer,), (steps,) = ours.optimizers, ours.steps
    steps.changed = False
    optimizer.grad_norm()
    getattr(optimizer, change)()
    ours.set_gradients({"p0": torch.ones(8)}, {"p0": 8})
    assert optimizer.grad_norm().item() == pytest.approx(math.sqrt(8))


def test_norm_after_clipping_is_the_clipped_one(cluster):
    ours = with_gradients(cluster, random_tensors([8], 0))
    ours.steps[0].changed = False
    ours.optimizers[0].clip_grad_norm_(0.25)
    assert ours.optimizers[0].grad_norm().item() == pytest.approx(0.25, rel=1e-5)


def test_negative_max_norm_is_refused(cluster):
    ours = with_gradients(cluster, random_tensors([8], 0))
    with pytest.raises(ValueError, match=r"expected a norm >= 0, got max_norm=-1"):
        ours.optimizers[0].clip_grad_norm_(-1.0)


def test_lists_of_other_rules_count_too(cluster):
    gradients = random_tensors([5, 9], 3)
    ours = cluster(
        [
            (SGD(), {"p0": torch.zeros(5, dtype=torch.float64)}),
            (AdamW(), {"p1": torch.zeros(9, dtype=torch.float64)}),
        ]
    )
    ours.set_gradients(gradients, {"p0": 5, "p1": 9})
    expected = torch.cat(list(gradients.values())).norm()
    torch.testing.assert_close(ours.optimizers[0].grad_norm(), expected, rtol=1e-12, atol=0)
