"""A cast computes in a narrow dtype, and trains in a wide one."""

import copy

import pytest
import torch
from testing.models import TiedModel
from torch import nn
from torch.nn import functional

from sshsdp_fsdp_runtime import Cast, Sharding, Update
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD, AdamW

from .scenes import ids, on_ranks

STEPS = 4
BF16 = Cast("**", torch.bfloat16)


class Narrow(nn.Module):
    """Layers of one block, and a use of a weight that is no layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6)) for _ in range(2)
        )
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 6))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x * self.scale


def batch(step, microbatch, rank):
    generator = torch.Generator().manual_seed(100 * step + 10 * microbatch + rank)
    return torch.randn(4, 6, generator=generator).bfloat16()


def loss_of(model, step, microbatch, rank):
    return model(batch(step, microbatch, rank)).float().square().mean()


def filled(tensor):
    """Fill vector registers: torch's fused kernel treats a remainder in another way."""
    flat = tensor.detach().flatten()
    return torch.cat([flat, flat.new_zeros(-flat.numel() % 16)])


def by_hand(model, world, microbatches):
    """bf16 weights from fp32 ones at every step; bf16 gradients, summed in fp32 by rank."""
    whole = {n: filled(p).requires_grad_() for n, p in model.named_parameters()}
    main = {n: whole[n].detach()[: p.numel()].view_as(p) for n, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(whole.values(), lr=1e-2, fused=True)
    for step in range(STEPS):
        sums = {}
        for microbatch in range(microbatches):
            parts = []
            for rank in range(world):
                narrow = copy.deepcopy(model).bfloat16()
                for name, parameter in narrow.named_parameters():
                    parameter.data.copy_(main[name])
                loss_of(narrow, step, microbatch, rank).backward()
                parts.append({n: p.grad.float() for n, p in narrow.named_parameters()})
            for name in main:
                total = parts[0][name]
                for part in parts[1:]:
                    total = total + part[name]
                total = total * (1 / world)
                sums[name] = total if name not in sums else sums[name] + total
        for name, parameter in whole.items():
            parameter.grad = filled(sums[name])
        optimizer.step()
    return main


@pytest.mark.parametrize("form", ["shared", "private"])
@pytest.mark.parametrize("microbatches", [1, 3])
def test_sharded_training_is_bit_for_bit_that_by_hand(microbatches, form):
    torch.manual_seed(0)
    model = Narrow()
    expected = by_hand(model, 2, microbatches)
    for state in trained(model, 2, 2, microbatches, form):
        for name, value in expected.items():
            assert state[name].dtype == torch.float32
            assert torch.equal(state[name], value), name


def trained(model, world, degree, microbatches, form="shared"):
    def scene(rank, ours):
        for step in range(STEPS):
            for microbatch in range(microbatches):
                loss_of(ours, step, microbatch, rank.rank).backward()
            ours.optimizer.step()
            ours.optimizer.zero_grad()
        return dict(ours.full_state_dict())

    return on_ranks(
        world,
        scene,
        model=model,
        formats=[BF16],
        form=form,
        sharding=[Sharding("**", Degrees(degree, degree, degree))],
        updates=[Update("**", AdamW(lr=1e-2))],
    )


@pytest.mark.parametrize("microbatches", [1, 3])
def test_replicas_end_equal_and_near_what_is_computed_by_hand(microbatches):
    torch.manual_seed(0)
    model = Narrow()
    expected = by_hand(model, 2, microbatches)
    first, second = trained(model, 2, 1, microbatches)
    for name, value in expected.items():
        assert torch.equal(first[name], second[name])
        # AdamW's steps are lr = 1e-2 long; fp32 sums in another order move them by far less.
        torch.testing.assert_close(first[name], value, rtol=1e-4, atol=1e-4)


def test_one_block_may_hold_layers_with_and_without_a_cast():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.ModuleDict({k: nn.Linear(6, 6) for k in "ab"})])

        def forward(self, x):
            block = self.layers[0]
            return block["b"](block["a"](x.bfloat16()).float())

    torch.manual_seed(0)
    model = Mixed()
    x = torch.randn(3, 6)
    narrow = copy.deepcopy(model)
    narrow.layers[0]["a"].bfloat16()
    scores = narrow(x)
    scores.sum().backward()
    expected = {n: p.grad.float().flatten() for n, p in narrow.named_parameters()}

    def scene(_rank, ours):
        dtypes = {n: p.dtype for n, p in ours.named_parameters()}
        result = ours(x)
        result.sum().backward()
        gradients = {n: p.grad for n, p in ours.named_parameters()}
        shown = {n: (g.fragment.start, g.local.clone()) for n, g in gradients.items()}
        return dtypes, result.detach(), shown

    cast = [Cast("layers.*.a.*", torch.bfloat16)]
    for dtypes, result, shown in on_ranks(2, scene, model=model, formats=cast):
        assert dtypes == {n: p.dtype for n, p in narrow.named_parameters()}
        assert torch.equal(result, scores)
        for name, (start, local) in shown.items():
            assert torch.equal(local, expected[name][start : start + local.numel()])


@pytest.mark.parametrize("degree", [1, 2])
def test_updates_too_small_for_bf16_add_up_in_main_weights(degree):
    model = nn.Linear(4, 4, bias=False)
    nn.init.ones_(model.weight)
    x = torch.ones(1, 4, dtype=torch.bfloat16)
    steps, lr = 40, 2.0**-12  # bf16 has a gap of 2**-8 below 1: one step of 2**-12 is lost in it

    def scene(_rank, ours):
        shown = []
        for _ in range(steps):
            with torch.no_grad():
                shown.append(ours(x)[0, 0].item())
            ours(x).sum().backward()
            ours.optimizer.step()
            ours.optimizer.zero_grad()
        return shown, ours.full_state_dict()["weight"]

    results = on_ranks(
        2,
        scene,
        model=model,
        formats=[BF16],
        sharding=[Sharding("**", Degrees(degree, degree, degree))],
        updates=[Update("**", SGD(lr=lr))],
    )
    for shown, weight in results:
        assert shown[0] == shown[1] == 4.0
        assert shown[-1] < 4.0
        assert torch.equal(weight, torch.full((4, 4), 1 - steps * lr))


def test_a_cast_leaves_other_dtypes_of_a_tied_model_trainable():
    def scene(rank, model):
        losses = []
        for _ in range(12):
            scores = model(ids()).float().flatten(0, 1)
            loss = functional.cross_entropy(scores, ids(1 + rank.rank).flatten())
            losses.append(loss.item())
            loss.backward()
            model.optimizer.step()
            model.optimizer.zero_grad()
        return losses[0] - losses[-1], {p.dtype for p in model.parameters()}

    update = [Update("**", AdamW(lr=3e-2))]
    for progress, dtypes in on_ranks(2, scene, model=TiedModel(), formats=[BF16], updates=update):
        assert progress > 0.5
        assert dtypes == {torch.bfloat16}
