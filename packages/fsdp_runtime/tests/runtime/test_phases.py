"""What may follow what: each step out of order has a rule, the same on every rank, and no harm.

After every case the same ranks train one more step, which must be that of plain PyTorch.
"""

import pytest
import torch
from testing.models import TiedModel

from sshsdp_fsdp_runtime import Update
from sshsdp_updates import SGD

from .scenes import ids, on_ranks

WORLD, RATE = 2, 0.1
UP = "layers.0.up.weight"
FORMS = {"shared": {"form": "shared"}, "private": {"form": "private", "poison": True}}


def loss_of(model, seed):
    return model(ids(seed)).logsumexp(-1).mean()


def values(model):
    return {name: value.clone() for name, value in model.full_state_dict().items()}


def plain_of(state):
    model = TiedModel().double()
    model.load_state_dict(state)
    return model


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def check_a_step(model, given=()):
    """One more step equals plain PyTorch's, with the gradients of `given` seeds in it already."""
    plain = plain_of(values(model))
    rank = model.transport.rank
    loss_of(model, 50 + rank).backward()
    model.optimizer.step()
    model.optimizer.zero_grad()
    for seeds in (*given, [50 + other for other in range(WORLD)]):
        (sum(loss_of(plain, seed) for seed in seeds) / WORLD).backward()
    torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=RATE).step()
    found = model.full_state_dict()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12, msg=name)


def refused(text, action, *arguments):
    with pytest.raises(RuntimeError, match=text):
        action(*arguments)


def step_without_backward(model):
    """Nothing changes, as with gradients that are None."""
    before = values(model)
    model.optimizer.step()
    model.optimizer.zero_grad()
    model.optimizer.zero_grad()
    model.optimizer.step()
    assert same(values(model), before)


def inside_of_an_edit(model):
    """Whatever would use or change weights is refused by name, and the edit goes on."""
    loss_of(model, model.transport.rank).backward()
    state = values(model)
    text = r"after the block of model\.unsharded\(\), got it inside"
    with model.unsharded(UP) as full:
        refused(f"a forward {text}", model, ids())
        refused(f"a step {text}", model.optimizer.step)
        refused(rf"unsharded\(\) {text}", model.unsharded().__enter__)
        refused(f"a change of weights {text}", model.load_state_dict, state)
        refused(f"a checkpoint {text}", lambda: list(model.checkpoint_tensors()))
        full[UP].mul_(2)
    state[UP].mul_(2)
    assert same(values(model), state)
    model.optimizer.zero_grad()


def inside_of_a_look(model):
    """Everything is legal; the values are those of the moment when they were taken."""
    before = values(model)
    with model.unsharded(write=False) as full:
        loss_of(model, model.transport.rank).backward()
        with model.unsharded(UP) as inner:
            inner[UP].add_(1.0)
        model.optimizer.step()
        model.optimizer.zero_grad()
        assert same({name: full[name] for name in before if name in full}, before)
    assert not same(values(model), before)


def an_edit_that_raises(model):
    """Nothing is written back, and the block is over."""
    before = values(model)
    with pytest.raises(ZeroDivisionError), model.unsharded() as full:  # noqa: PT012
        full[UP].zero_()
        raise ZeroDivisionError
    assert same(values(model), before)


def finalize_twice(model):
    """Again is nothing; backward after it adds."""
    for _ in range(2):
        loss_of(model, model.transport.rank).backward()
        model.finalize_gradients()
        model.finalize_gradients()
    return [range(WORLD), range(WORLD)]


def during_a_backward(model):
    """Gradients are used or dropped after a backward only; the round is then begun anew."""
    for action in (model.optimizer.step, model.optimizer.zero_grad, model.finalize_gradients):
        output = model.layers[1](torch.ones(2, 5, dtype=torch.float64))
        output.register_hook(lambda _gradient, action=action: action() and None)
        total = output.sum() + loss_of(model, 0)
        refused("running backward to end first", total.backward)
        model(ids())  # the next forward gives the broken round up
        model.optimizer.zero_grad()


def load_within_a_round(model):
    """Weights are replaced and gradients stay, as in torch."""
    loss_of(model, model.transport.rank).backward()
    plain = plain_of(values(model))
    (sum(loss_of(plain, seed) for seed in range(WORLD)) / WORLD).backward()
    model.load_state_dict({name: value * 0.5 for name, value in values(model).items()})
    for name, p in plain.named_parameters():
        gradient = dict(model.named_parameters())[name].grad
        if p.grad is not None:
            fragment = gradient.fragment
            wanted = p.grad.reshape(-1)[fragment.start : fragment.stop]
            torch.testing.assert_close(gradient.local, wanted, rtol=1e-10, atol=1e-12)
    model.optimizer.zero_grad()


def change_between_forward_and_backward(model):
    """Autograd's own error, as in torch; the round is then begun anew."""
    state = values(model)
    changes = [model.optimizer.step, lambda: model.load_state_dict(state)]
    for change in changes:
        early = loss_of(model, 3)
        loss_of(model, model.transport.rank).backward()
        change()
        refused("modified by an inplace operation", early.backward)
        model(ids())
        model.optimizer.zero_grad()


def checkpoint_within_a_round(model):
    """Weights of the last update are saved; gradients are not, and stay."""
    before = values(model)
    loss_of(model, model.transport.rank).backward()
    for entry in model.checkpoint_tensors():
        name = entry.key.removeprefix("model.")
        wanted = before[name].reshape(-1)[entry.start : entry.stop]
        assert torch.equal(entry.tensor, wanted), name
    return [range(WORLD)]


CASES = [
    step_without_backward,
    inside_of_an_edit,
    inside_of_a_look,
    an_edit_that_raises,
    finalize_twice,
    load_within_a_round,
    checkpoint_within_a_round,
    during_a_backward,
    change_between_forward_and_backward,
]


@pytest.mark.parametrize("form", FORMS)
def test_every_order_of_calls_has_a_rule_and_leaves_a_model_that_trains_on(form):
    def scene(_rank, model):
        for case in CASES:
            given = case(model) or ()
            try:
                check_a_step(model, given)
            except AssertionError as error:
                raise AssertionError(f"after {case.__name__}: {error}") from error
        return True

    updates = [Update("**", SGD(lr=RATE))]
    assert on_ranks(WORLD, scene, updates=updates, **FORMS[form]) == [True] * WORLD


@pytest.mark.parametrize("form", FORMS)
def test_a_closed_model_says_so_whatever_is_asked_of_it(form):
    def scene(_rank, model):
        optimizer, state, loss = model.optimizer, values(model), loss_of(model, 0)
        parameters = list(model.parameters())
        plan = model.plan.describe()
        with model.unsharded(UP, write=False):
            model.close()
        model.close()
        uses = {
            "forward": lambda: model(ids()),
            "backward": loss.backward,
            "step": optimizer.step,
            "zero_grad": optimizer.zero_grad,
            "clip": lambda: optimizer.clip_grad_norm_(1.0),
            "state of the optimizer": optimizer.state_dict,
            "optimizer": lambda: model.optimizer,
            "finalize": model.finalize_gradients,
            "unsharded": lambda: model.unsharded().__enter__(),
            "state_dict": model.state_dict,
            "full_state_dict": model.full_state_dict,
            "load": lambda: model.load_state_dict(state),
            "checkpoint": lambda: list(model.checkpoint_tensors()),
            "zero_grad of the model": model.zero_grad,
        }
        for name, use in uses.items():
            with pytest.raises(RuntimeError, match=r"expected an open (model|optimizer), got one"):
                pytest.fail(f"{name} gave {use()}")
        assert all(type(p) is torch.nn.Parameter and p.numel() == 0 for p in parameters)
        return model.plan.describe() == plan

    assert on_ranks(WORLD, scene, **FORMS[form]) == [True] * WORLD
