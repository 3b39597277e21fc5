"""What `p.grad` shows, and who may ask for gradients."""

import copy
from functools import partial
from itertools import chain

import pytest
import torch
from testing.models import TiedModel
from torch import nn
from torch.nn import functional

from sshsdp_fsdp_runtime import Sharding
from sshsdp_shardchain import Degrees

from .scenes import ids, on_ranks, on_ranks_in_turn


def loss_of(model, seed=0):
    return functional.cross_entropy(model(ids(seed)).flatten(0, 1), ids(seed + 1).flatten())


def reference(world, microbatches=1):
    torch.manual_seed(0)
    model = TiedModel().double()
    for microbatch in range(microbatches):
        for rank in range(world):
            (loss_of(model, 10 * microbatch + rank) / world).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def local_gradients(rank, model, microbatches):
    before = [p.grad for p in model.parameters()]
    assert before == [None] * len(before)
    for microbatch in range(microbatches):
        loss_of(model, 10 * microbatch + rank.rank).backward()
    shown = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    return {
        name: (g.shape, g.fragment.start, g.fragment.stop, g.local.clone())
        for name, g in shown.items()
    }


@pytest.mark.parametrize(
    ("world", "degrees", "microbatches"),
    [
        (1, [(1, 1, 1)], 1),
        (2, [(2, 2, 2)], 3),
        (3, [(1, 1, 1)], 2),
        (4, [(4, 4, 4), (2, 2, 4), (1, 2, 2)], 1),
        (4, [(1, 2, 4), (1, 1, 2)], 2),
    ],
)
def test_pieces_of_gradients_are_those_of_plain_pytorch(world, degrees, microbatches):
    expected = reference(world, microbatches)
    scene = partial(local_gradients, microbatches=microbatches)
    cases = [{"sharding": [Sharding("**", Degrees(*case))]} for case in degrees]
    for pieces in chain.from_iterable(on_ranks_in_turn(world, scene, cases)):
        for name, (shape, start, stop, local) in pieces.items():
            if expected[name] is None:
                continue  # unused everywhere: the optimizer skips it
            assert shape == expected[name].shape
            torch.testing.assert_close(
                local, expected[name].flatten()[start:stop], rtol=1e-10, atol=1e-13
            )


DEGREES = [(1, 1, 1), (4, 4, 4), (1, 1, 4), (1, 2, 4), (2, 2, 4), (2, 2, 2), (1, 1, 2), (1, 2, 2)]
NESTED = [{"sharding": [Sharding("**", Degrees(*degrees))]} for degrees in DEGREES]


def test_more_backward_after_a_finished_and_scaled_gradient_adds_up():
    first, both = reference(4), reference(4, microbatches=2)

    def scene(rank, model):
        loss_of(model, rank.rank).backward()
        model.finalize_gradients()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.25)
        loss_of(model, 10 + rank.rank).backward()
        shown = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
        return {n: (g.fragment.start, g.local.clone()) for n, g in shown.items()}

    for pieces in chain.from_iterable(on_ranks_in_turn(4, scene, NESTED)):
        for name, (start, local) in pieces.items():
            if both[name] is not None:
                expected = (both[name] - 0.75 * first[name]).flatten()
                piece = expected[start : start + local.numel()]
                torch.testing.assert_close(local, piece, rtol=1e-10, atol=1e-13)


def test_norms_are_those_of_whole_gradients_on_every_rank():
    expected = reference(4)
    total = torch.nn.utils.get_total_norm([g for g in expected.values() if g is not None])

    def scene(rank, model):
        loss_of(model, rank.rank).backward()
        weight = model.layers[0].up.weight
        ours = model.optimizer.grad_norm()
        theirs = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        return weight.grad.norm().item(), ours.item(), theirs.item()

    cases = [case | {"form": "private", "poison": True} for case in NESTED]
    for one, ours, theirs in chain.from_iterable(on_ranks_in_turn(4, scene, cases)):
        assert one == pytest.approx(expected["layers.0.up.weight"].norm().item(), rel=1e-12)
        assert ours == pytest.approx(total.item(), rel=1e-12)
        assert theirs == pytest.approx(total.item(), rel=1e-12)


@pytest.mark.parametrize("degrees", [(2, 2, 2), (1, 1, 2)])
def test_dropping_gradients_starts_a_new_round(degrees):
    def scene(rank, model):
        start = {n: v.clone() for n, v in model.full_state_dict().items()}
        loss_of(model, 5).backward()
        for parameter in model.parameters():
            parameter.grad = None  # as torch's own zero_grad does
        model.optimizer.step()
        unchanged = all(torch.equal(v, start[n]) for n, v in model.full_state_dict().items())
        loss_of(model, 5).backward()
        model.zero_grad()
        shown = [p.grad for p in model.parameters()]
        loss_of(model, rank.rank).backward()
        gradient = model.layers[1].down.weight.grad
        return unchanged, shown, gradient.fragment.start, gradient.local.clone()

    expected = reference(2)["layers.1.down.weight"].flatten()
    sharding = [Sharding("**", Degrees(*degrees))]
    for unchanged, shown, start, local in on_ranks(2, scene, sharding=sharding):
        assert unchanged
        assert shown == [None] * len(shown)
        torch.testing.assert_close(local, expected[start : start + local.numel()])


def test_gradients_of_inputs_leave_those_of_weights_alone():
    def scene(_rank, model):
        x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
        plain = torch.autograd.grad(model.layers[0](x).sum(), x)[0]
        y = model.layers[0](x)
        torch.autograd.backward(y.sum(), inputs=[x])
        assert torch.equal(plain, x.grad)
        assert (
            model.layers[0].up.weight.grad is None or not model.layers[0].up.weight.grad.local.any()
        )
        with pytest.raises(RuntimeError, match="expected gradients of sharded parameters from"):
            torch.autograd.grad(model.layers[0](x).sum(), model.layers[0].up.weight)
        return True

    assert on_ranks(1, scene) == [True]


def test_a_second_derivative_reaches_the_weights():
    torch.manual_seed(1)
    layer = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    x = torch.randn(5, 4, dtype=torch.float64)

    def penalty(model):
        point = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(point).sum(), point, create_graph=True)
        return slope.square().sum()

    plain = copy.deepcopy(layer)
    penalty(plain).backward()

    def scene(_rank, model):
        penalty(model).backward()
        return model[0].weight.grad.local.clone()

    (ours,) = on_ranks(1, scene, model=layer)
    torch.testing.assert_close(ours, plain[0].weight.grad.flatten())


@pytest.mark.parametrize("world", [1, 2])
def test_the_gradient_of_an_unused_parameter_reads_as_zeros(world):
    def scene(rank, model):
        loss_of(model, rank.rank).backward()
        return model.layers[0].unused.grad.local.clone()

    for piece in on_ranks(world, scene, form="private", poison=True):
        assert not piece.any()


def test_setting_and_other_uses_of_gradients_are_refused():
    def scene(_rank, model):
        loss_of(model).backward()
        weight = model.layers[0].up.weight
        with pytest.raises(RuntimeError, match="expected None, which drops the gradient"):
            weight.grad = torch.zeros_like(weight)
        with pytest.raises(RuntimeError, match="expected a norm or mul_ of a sharded gradient"):
            weight.grad + 1
        with pytest.raises(RuntimeError, match="use norm_type=2"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=1.0)
        return True

    assert on_ranks(1, scene) == [True]


def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_all():
    def scene(rank, model):
        before = {n: v.clone() for n, v in model.full_state_dict().items()}
        loss = loss_of(model, rank.rank)
        (loss * float("inf") if rank.rank == 1 else loss).backward()
        norm = model.optimizer.clip_grad_norm_(1.0)
        model.optimizer.step()
        after = model.full_state_dict()
        same = all(torch.equal(after[name], value) for name, value in before.items())
        return norm.isfinite().item(), same, model.optimizer.last_step_skipped

    for seen in on_ranks_in_turn(4, scene, NESTED):
        assert seen == [(False, True, True)] * 4


def test_an_embedding_row_that_is_padding_gets_no_gradient():
    model = nn.Embedding(7, 3, padding_idx=2).double()
    index = torch.tensor([[1, 2, 2], [6, 1, 2]])
    plain = copy.deepcopy(model)
    plain(index).square().sum().backward()

    def scene(_rank, ours):
        ours(index).square().sum().backward()
        ours(index).square().sum().backward()
        gradient = ours.weight.grad
        return gradient.fragment.start, gradient.local.clone()

    for start, local in on_ranks(2, scene, model=model):
        expected = 2 * plain.weight.grad.flatten()[start : start + local.numel()]
        torch.testing.assert_close(local, expected)
