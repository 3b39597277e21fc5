"""A mixture of experts computes what its tokens say one by one, and idle experts rest."""

import pytest
import torch
from torch.nn.functional import silu

from sshsdp_fsdp_runtime.trainer.experts import Experts, balance_loss

WIDTH, HIDDEN = 6, 5


def mixture(experts=4, active=2):
    torch.manual_seed(0)
    return Experts(WIDTH, HIDDEN, experts=experts, active=active).double()


def activations(batch=3, length=7, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=generator)


def token_by_token(layer, x):
    """The same from the definition: no sorting, no batches."""
    outputs, losses = [], []
    experts = layer.gate_proj.shape[0]
    for sequence in x:
        counts, sums = [0] * experts, [0.0] * experts
        for token in sequence:
            scores = (layer.router.weight @ token).exp()
            scores = scores / scores.sum()
            chosen = sorted(range(experts), key=lambda e, s=scores: -s[e])[: layer.active]
            output = torch.zeros(WIDTH, dtype=torch.float64)
            for e in chosen:
                inner = silu(layer.gate_proj[e] @ token) * (layer.up_proj[e] @ token)
                output = output + scores[e] * (layer.down_proj[e] @ inner)
                counts[e] += 1
            sums = [total + score for total, score in zip(sums, scores, strict=True)]
            outputs.append(output)
        length = len(sequence)
        losses.append(
            sum(
                (experts * count / (layer.active * length)) * (total / length)
                for count, total in zip(counts, sums, strict=True)
            )
        )
    return torch.stack(outputs).view(x.shape), sum(losses) / len(losses)


def gradients(layer, x, outputs, balance):
    loss = (outputs * torch.linspace(-1, 1, outputs.numel()).view(outputs.shape)).sum() + balance
    return torch.autograd.grad(loss, [x, *layer.parameters()], materialize_grads=True)


@pytest.mark.parametrize(
    ("experts", "active", "length"), [(4, 2, 7), (4, 1, 7), (3, 3, 7), (1, 1, 7), (16, 2, 3)]
)
def test_outputs_and_gradients_are_those_of_a_loop_over_tokens(experts, active, length):
    layer, x = mixture(experts, active), activations(length=length).requires_grad_()
    ours, expected = layer(x), token_by_token(layer, x)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-14)
    for mine, theirs in zip(
        gradients(layer, x, *ours), gradients(layer, x, *expected), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-13)


def test_an_expert_without_tokens_has_a_gradient_of_zeros():
    layer, x = mixture(experts=16, active=1), activations(batch=1, length=3)
    used = set(layer.router(x).argmax(-1).flatten().tolist())
    outputs, balance = layer(x)
    (outputs.square().sum() + balance).backward()
    for weight in (layer.gate_proj, layer.up_proj, layer.down_proj):
        assert {e for e in range(16) if weight.grad[e].any()} == used
        assert weight.grad.isfinite().all()


def test_a_router_learns_where_one_expert_is_active():
    layer, x = mixture(active=1), activations()
    layer(x)[0].square().sum().backward()
    assert layer.router.weight.grad.abs().min() > 0


def test_the_balance_loss_is_one_where_use_is_even_and_the_number_of_experts_at_worst():
    chosen = torch.arange(8).view(1, 8, 1) % 4
    even, one = torch.full((1, 8, 4), 0.25), torch.zeros(1, 8, 4)
    one[..., 2] = 1.0
    assert balance_loss(even, chosen) == 1
    assert balance_loss(one, torch.full((1, 8, 1), 2)) == 4
    both = torch.stack([torch.zeros(1, 8), torch.ones(1, 8)], dim=-1).long()
    assert balance_loss(one.roll(-2, dims=-1), both) == 2


def test_the_balance_loss_does_not_depend_on_how_sequences_are_split():
    layer, x = mixture(), activations(batch=4)
    whole = layer(x)[1]
    parts = torch.stack([layer(part)[1] for part in x.split(1)])
    torch.testing.assert_close(parts.mean(), whole, rtol=1e-14, atol=0)
    assert parts.std() > 1e-3


def test_descent_of_the_balance_loss_spreads_tokens():
    layer, x = mixture(experts=8, active=1), activations(batch=2, length=32)
    with torch.no_grad():
        layer.router.weight[0] += 0.5 * x.mean((0, 1)) / x.mean((0, 1)).norm()
    optimizer = torch.optim.SGD(layer.router.parameters(), lr=0.3)
    before = layer(x)[1].item()
    for _ in range(100):
        optimizer.zero_grad()
        layer(x)[1].backward()
        optimizer.step()
    after = layer(x)[1].item()
    assert 0.99 < after < min(before, 1.05)
