"""Sharded steps equal torch.optim on whole tensors, for any world, cut and missing gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sshsdp_updates import SGD, AdamW

NUMELS = st.lists(st.integers(0, 70), min_size=1, max_size=5)
WORLDS = st.integers(1, 8)
SEEDS = st.integers(0, 10_000)
# A multiple of every vector width. torch's fused kernels treat the last elements of a tensor that
# don't fill a register in another way than all others, ours treat all alike: theirs get tensors
# that are filled up with zeros.
VECTOR = 16


@st.composite
def adamw_rules(draw):
    decay = draw(st.sampled_from([0.0, 0.1]))
    betas = draw(st.sampled_from([(0.9, 0.999), (0.0, 0.9), (0.9, 0.0)]))
    lr = draw(st.sampled_from([0.0, 1e-3, 0.3]))
    return AdamW(lr=lr, betas=betas, eps=1e-6, weight_decay=decay)


@st.composite
def sgd_rules(draw):
    momentum = draw(st.sampled_from([0.0, 0.5, 0.9]))
    nesterov = draw(st.booleans()) and momentum > 0
    dampening = 0.0 if nesterov else draw(st.sampled_from([0.0, 0.3]))
    decay = draw(st.sampled_from([0.0, 0.1]))
    return SGD(0.1, momentum, dampening, decay, nesterov)


def torch_optimizer(rule, tensors, fused):
    kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[rule.name]
    how = {"fused": True} if fused else {"fused": False, "foreach": False}
    return kind(tensors, **rule.hyperparameters(), **how)


def filled(tensor):
    return torch.cat([tensor, tensor.new_zeros(-tensor.numel() % VECTOR)])


def train(cluster, rule, numels, *, world, align, seed, dtype, absent=0.0, steps=3):
    """Train both ways; yield (name, ours, torch's) of every weight after every step.

    A gradient that is missing is missing from the first step on with torch's fused SGD, which
    has one first-step flag for all tensors.
    """
    random = torch.Generator().manual_seed(seed)
    tensors = {f"p{i}": torch.randn(n, generator=random, dtype=dtype) for i, n in enumerate(numels)}
    whole = {name: torch.nn.Parameter(filled(tensor)) for name, tensor in tensors.items()}
    # One torch optimizer per tensor, so that each has its own first step.
    oracles = [torch_optimizer(rule, [p], fused=dtype is torch.float32) for p in whole.values()]
    ours = cluster([(rule, tensors)], world=world, align=align)
    for _ in range(steps):
        gradients = {}
        for name, parameter in whole.items():
            present = torch.rand((), generator=random) >= absent
            gradient = torch.randn(tensors[name].numel(), generator=random, dtype=dtype)
            gradients[name] = gradient if present else None
            parameter.grad = filled(gradient) if present else None
        ours.set_gradients(gradients, {name: tensor.numel() for name, tensor in tensors.items()})
        ours.run(lambda optimizer: optimizer.step())
        for oracle in oracles:
            oracle.step()
        assert ours.padding_is_untouched()
        for name, parameter in whole.items():
            numel = tensors[name].numel()
            yield name, ours.weight(name, numel), parameter.detach()[:numel]


@given(st.one_of(adamw_rules(), sgd_rules()), NUMELS, WORLDS, st.sampled_from([1, 4, 8]), SEEDS)
@settings(max_examples=80, deadline=None)
def test_float64_matches_torch_for_any_cut(cluster, rule, numels, world, align, seed):
    runs = train(
        cluster, rule, numels, world=world, align=align, seed=seed, dtype=torch.float64, absent=0.3
    )
    for _, ours, theirs in runs:
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@given(st.one_of(adamw_rules(), sgd_rules()), NUMELS, WORLDS, st.sampled_from([1, 3, 16]), SEEDS)
@settings(max_examples=60, deadline=None)
def test_float32_is_bit_equal_to_fused_torch_for_any_cut(cluster, rule, numels, world, align, seed):
    runs = train(
        cluster, rule, numels, world=world, align=align, seed=seed, dtype=torch.float32, absent=0.3
    )
    for _, ours, theirs in runs:
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("rule", [AdamW(lr=0.1), SGD(0.1, 0.9, 0.3, 0.1)], ids=["adamw", "sgd"])
def test_state_equals_torch(cluster, rule):
    random = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(48, generator=random))
    ours = cluster([(rule, {"w": weight.detach().clone()})], world=2, align=5)
    oracle = torch_optimizer(rule, [weight], fused=True)
    for _ in range(3):
        weight.grad = torch.randn(48, generator=random)
        ours.set_gradients({"w": weight.grad}, {"w": 48})
        ours.run(lambda optimizer: optimizer.step())
        oracle.step()
    pieces = [optimizer.state_dict()["state"]["w"] for optimizer in ours.optimizers]
    for field in (state.name for state in rule.state_fields()):
        whole = torch.cat([piece[field] for piece in pieces])
        assert torch.equal(whole, oracle.state[weight][field])
    assert [piece["step"].item() for piece in pieces] == [3.0, 3.0]


def test_replicas_stay_bit_equal(cluster):
    tensors = {"a": torch.randn(19), "b": torch.randn(5)}
    ours = cluster([(AdamW(lr=0.1), tensors)], world=6, zero1=2)
    ours.set_gradients(tensors, {"a": 19, "b": 5})
    ours.run(lambda optimizer: optimizer.clip_grad_norm_(0.5))
    ours.run(lambda optimizer: optimizer.step())
    ours.weight("a", 19)
    ours.weight("b", 5)
