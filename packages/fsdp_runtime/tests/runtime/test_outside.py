"""Weights outside of a forward: what is read stays as it was read, what is written is refused."""

import pytest
import torch
from testing.models import TiedModel
from torch import nn

from .scenes import ids, on_ranks

UP = "layers.0.up.weight"
FORMS = {"shared": {"form": "shared"}, "private": {"form": "private", "poison": True}}
each_form = pytest.mark.parametrize("form", FORMS)


def values(model):
    return {name: value.clone() for name, value in model.full_state_dict().items()}


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def up(model):
    return model.layers[0].up.weight


def vector_in(model):
    parameters = list(model.parameters())
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(parameters) * 2, parameters)


def assign(model):
    up(model).data = torch.zeros(7, 5, dtype=torch.float64)


def set_item(model):
    up(model)[0] = 1.0


def multiply(model):
    weight = up(model)
    weight *= 2


EDITS = {
    "add_": lambda model: up(model).add_(1.0),
    "copy_": lambda model: up(model).copy_(torch.zeros(7, 5)),
    "fill by nn.init": lambda model: nn.init.ones_(up(model)),
    "draw by nn.init": lambda model: nn.init.kaiming_uniform_(up(model), a=1.0),
    "reset_parameters": lambda model: model.layers[0].up.reset_parameters(),
    "data =": assign,
    "[...] =": set_item,
    "*=": multiply,
    "clamp_": lambda model: up(model).clamp_(-0.1, 0.1),
    "out=": lambda model: torch.add(torch.ones(7, 5), 1.0, out=up(model)),
    "_foreach": lambda model: torch._foreach_mul_(list(model.parameters()), 0.5),
    "vector_to_parameters": vector_in,
    "load_state_dict of a layer": lambda model: model.layers[0].up.load_state_dict(
        {"weight": torch.zeros(7, 5), "bias": torch.zeros(7)}
    ),
    "another optimizer": lambda model: torch.optim.SGD([up(model)], momentum=0.0, lr=0.1).step(),
}


def expected_score(model, seed=0):
    with torch.no_grad():
        return model(ids(seed))


@each_form
def test_writing_into_a_parameter_is_refused_with_what_to_do_and_changes_nothing(form):
    def scene(_rank, model):
        before, score = values(model), expected_score(model)
        model(ids()).sum().backward()  # for the optimizer of another
        for name, edit in EDITS.items():
            with torch.no_grad(), pytest.raises(RuntimeError) as caught:
                edit(model)
            assert "model.unsharded(" in str(caught.value), (name, str(caught.value))
            assert same(values(model), before), name
        assert torch.equal(expected_score(model), score)
        model.optimizer.step()
        return True

    assert on_ranks(2, scene, **FORMS[form]) == [True, True]


def test_writing_through_data_into_a_weight_that_is_not_there_raises_at_once():
    def scene(_rank, model):
        with torch.no_grad():
            model.layers[0].up(torch.ones(1, 5, dtype=torch.float64))  # it was, a moment ago
        before = values(model)
        with pytest.raises(RuntimeError, match="single memory location"):
            up(model).data.clamp_(-0.1, 0.1)
        return same(values(model), before)

    assert on_ranks(2, scene, **FORMS["private"]) == [True, True]


HIDDEN = {
    "data": lambda model: up(model).data.clamp_(-0.1, 0.1),
    "a view": lambda model: up(model).view(-1)[3:].zero_(),
    "detach": lambda model: up(model).detach().add_(1.0),
}


@pytest.mark.parametrize("world", [1, 2])
def test_writes_through_data_or_a_view_are_found_before_the_weights_are_used(world):
    def scene(_rank, model):
        good = values(model)
        model.transport.barrier()  # nothing else keeps such writes from others' reads
        text = "'layers.0.up.weight' as the last update left it, got it changed in place"
        for edit in HIDDEN.values():
            with torch.no_grad():
                edit(model)
            with pytest.raises(RuntimeError, match=f"{text}.*before a forward"):
                model(ids())
            with pytest.raises(RuntimeError, match=f"{text}.*before unsharded"):
                model.unsharded().__enter__()
            model.load_state_dict(good)
            model(ids()).sum().backward()
            with torch.no_grad():
                edit(model)
            with pytest.raises(RuntimeError, match=f"{text}.*before a step"):
                model.optimizer.step()
            model.load_state_dict(good)
            model.optimizer.zero_grad()
            assert same(values(model), good)
            model.transport.barrier()
        return expected_score(model)

    torch.manual_seed(0)
    plain = TiedModel().double()
    for score in on_ranks(world, scene, model=plain, form="shared"):
        torch.testing.assert_close(score, expected_score(plain))


@each_form
def test_what_is_read_together_or_kept_has_all_values(form):
    """Groups take turns in their buffers, so that a view of one would show another's weights."""

    def scene(_rank, model):
        full = values(model)
        named = dict(model.named_parameters())
        wanted = torch.cat([full[name].reshape(-1) for name in named])
        assert torch.equal(nn.utils.parameters_to_vector(named.values()), wanted)
        assert torch.equal(
            torch.cat([layer.up.bias for layer in model.layers]),
            torch.cat([full[f"layers.{i}.up.bias"] for i in range(3)]),
        )
        norms = torch._foreach_norm([layer.up.weight for layer in model.layers])
        for index, norm in enumerate(norms):
            assert norm == full[f"layers.{index}.up.weight"].norm()
        kept = {
            "detach": {name: p.detach() for name, p in named.items()},
            "view": {name: p.view(p.shape) for name, p in named.items()},
            "slice": {name: p[...] for name, p in named.items()},
            "unbind": {
                name: torch.stack(p.unbind()) for name, p in named.items() if p.dim() and p.numel()
            },
        }
        for index, layer in enumerate(model.layers):
            kept[f"state_dict of layer {index}"] = {
                f"layers.{index}.{name}": value for name, value in layer.state_dict().items()
            }
        model(ids())
        for how, found in kept.items():
            assert same(found, full), how
        return sum(p.numel() for p in model.parameters()), wanted.numel()

    [first, second] = on_ranks(2, scene, **FORMS[form])
    assert first == second
    assert first[0] == first[1]


@each_form
def test_a_penalty_on_weights_outside_of_the_model_has_the_gradients_of_plain_pytorch(form):
    def loss_of(model, seed):
        penalty = sum(p.view(-1).square().sum() for p in model.parameters() if p.requires_grad)
        together = torch.stack([layer.scale for layer in model.layers]).prod()
        return model(ids(seed)).logsumexp(-1).mean() + 0.1 * penalty + together

    torch.manual_seed(0)
    plain = TiedModel().double()

    def scene(rank, model):
        for step in range(2):
            loss_of(model, 2 * step + rank.rank).backward()
            model.optimizer.step()
            model.optimizer.zero_grad()
        return values(model)

    results = on_ranks(2, scene, model=plain, **FORMS[form])
    optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-3)
    for step in range(2):
        (sum(loss_of(plain, 2 * step + rank) for rank in range(2)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    for found in results:
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12)
