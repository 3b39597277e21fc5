"""What autograd offers beside backward(): hooks, other gradients, gradients of gradients."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from sshsdp_fsdp_runtime import Pack

from .scenes import on_ranks_in_turn

WIDTH = 6
FORMS = [
    {"form": "shared"},
    {"form": "private", "poison": True, "slots": 1},
    {"form": "private", "poison": True, "slots": 2, "packs": [Pack("layers.*", ["gate", "up"])]},
]
EXACT = {"rtol": 1e-10, "atol": 1e-12}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 5), nn.Linear(WIDTH, 5)
        self.down = nn.Parameter(torch.randn(5, WIDTH))  # its gradients are not written directly

    def forward(self, x):
        y = self.norm(x)
        return x + (torch.tanh(self.gate(y)) * self.up(y)) @ self.down


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        if not x.is_floating_point():
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return x


def fresh():
    torch.manual_seed(0)
    return Model().double()


def in_each_form(scene):
    """Per form what two ranks returned."""
    return on_ranks_in_turn(2, scene, [{"model": fresh()} | form for form in FORMS])


def points(rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(3, WIDTH, generator=generator, dtype=torch.float64)


def words(rank):
    return torch.randint(0, 7, (2, 4), generator=torch.Generator().manual_seed(rank))


def pieces(model):
    shown = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: (g.fragment.start, g.local.clone()) for name, g in shown.items()}


def compare(locals_, plain):
    """Pieces of every rank with gradients of a plain model; None there is zeros here."""
    for local in locals_:
        for name, (start, piece) in local.items():
            whole = plain.get_parameter(name).grad
            whole = torch.zeros_like(plain.get_parameter(name)) if whole is None else whole
            expected = whole.flatten()[start : start + piece.numel()]
            torch.testing.assert_close(piece, expected, msg=lambda m, n=name: f"{n}: {m}", **EXACT)


def hook_parameters(model, seen):
    """On weights of every kind: one that looks, one that changes, one that comes too late."""
    block = model.layers[1]
    for parameter in (block.gate.weight, block.norm.weight, model.embedding.weight, block.down):
        parameter.register_hook(lambda g: seen.append(g.norm().item()))
    block.up.weight.register_hook(lambda g: g * 3)
    block.up.bias.register_hook(lambda g: g * 2)
    block.norm.bias.register_hook(lambda g: -g)


def test_hooks_on_parameters_see_and_change_gradients():
    def scene(rank, model):
        seen = []
        hook_parameters(model, seen)
        loss = model(words(rank.rank)).square().mean()
        model.layers[2].gate.weight.register_hook(lambda g: g / 2)  # after the forward
        loss.backward()
        return seen, pieces(model)

    plain, expected = fresh(), [[], []]
    for rank in range(2):
        model = copy.deepcopy(plain)
        hook_parameters(model, expected[rank])
        model.layers[2].gate.weight.register_hook(lambda g: g / 2)
        model(words(rank)).square().mean().backward()
        for own, parameter in zip(plain.parameters(), model.parameters(), strict=True):
            own.grad = parameter.grad / 2 + (0 if own.grad is None else own.grad)
    for results in in_each_form(scene):
        for (seen, _), wanted in zip(results, expected, strict=True):
            assert sorted(seen) == pytest.approx(sorted(wanted))
        compare([local for _, local in results], plain)


def test_hooks_after_accumulation_fire_once_per_backward_and_parameter():
    def scene(rank, model):
        seen = []
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda p, n=name: seen.append((n, p.grad.shape == p.shape))
            )
        weight = model.layers[0].gate.weight
        hook = weight.register_post_accumulate_grad_hook(lambda p: p.grad.norm())
        with pytest.raises(RuntimeError, match="running backward to end first"):
            model(words(rank.rank)).sum().backward()
        hook.remove()
        seen.clear()
        model(words(rank.rank)).sum().backward()
        return sorted(seen)

    expected = sorted((name, True) for name, _ in fresh().named_parameters())
    assert in_each_form(scene) == [[expected, expected]] * len(FORMS)


def hook_modules(model, seen):
    def full(_module, before, after):
        seen.append([*(g.norm().item() for g in before), *(g.norm().item() for g in after)])

    for module in (model.layers[1], model.layers[1].gate, model.layers[2].norm):
        module.register_full_backward_hook(full)
    model.layers[0].register_full_backward_pre_hook(lambda _module, dy: (2 * dy[0],))


def test_hooks_on_modules_and_activations_are_those_of_plain_pytorch():
    def run(model, rank):
        seen = []
        hook_modules(model, seen)
        y = model.layers[0](points(rank).requires_grad_())
        y.register_hook(lambda g: g * 0.5)
        model.layers[2](model.layers[1](y)).square().mean().backward()
        return seen

    plain, expected = fresh(), []
    for rank in range(2):
        model = copy.deepcopy(plain)
        expected.append(run(model, rank))
        for own, parameter in zip(plain.parameters(), model.parameters(), strict=True):
            if parameter.grad is not None:
                own.grad = parameter.grad / 2 + (0 if own.grad is None else own.grad)
    for results in in_each_form(lambda rank, m: (run(m, rank.rank), pieces(m))):
        for (seen, _), wanted in zip(results, expected, strict=True):
            assert [pytest.approx(row) for row in wanted] == seen
        compare([local for _, local in results], plain)


def test_gradients_by_a_parameter_are_refused_whoever_computes_with_it():
    def scene(rank, model):
        block = model.layers[1]
        parameters = (block.gate.weight, block.norm.weight, block.down, model.embedding.weight)
        for parameter in parameters:
            loss = model(words(rank.rank)).sum()
            with pytest.raises(RuntimeError, match="expected gradients of sharded parameters from"):
                torch.autograd.grad(loss, parameter)
        model.zero_grad()
        model(words(rank.rank)).square().mean().backward()
        return pieces(model)

    plain = fresh()
    for rank in range(2):
        (plain(words(rank)).square().mean() / 2).backward()
    for results in in_each_form(scene):
        compare(results, plain)


def test_backward_with_inputs_reaches_those_alone():
    def run(model, rank, divisor=1):
        x = points(rank).requires_grad_()
        loss = model(x).square().mean() / divisor
        block = model.layers[1]
        chosen = [x, block.gate.weight, block.norm.bias, block.down]
        loss.backward(inputs=chosen, retain_graph=True)
        (slope,) = torch.autograd.grad(loss, x)  # leaves all gradients as they are
        return x.grad * divisor, slope * divisor

    plain = fresh()
    expected = [run(plain, rank, 2) for rank in range(2)]
    for results in in_each_form(lambda rank, m: (run(m, rank.rank), pieces(m))):
        for (slopes, _), wanted in zip(results, expected, strict=True):
            torch.testing.assert_close(slopes, wanted, **EXACT)
        compare([local for _, local in results], plain)


def test_a_penalty_on_gradients_of_inputs_trains_the_weights():
    def penalty(model, rank):
        x = points(rank).requires_grad_()
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        return slope.square().mean() + functional.softplus(model(x)).mean()

    def scene(rank, model):
        penalty(model, rank.rank).backward()
        return pieces(model)

    plain = fresh()
    for rank in range(2):
        (penalty(plain, rank) / 2).backward()
    for results in in_each_form(scene):
        compare(results, plain)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning")
def test_a_backward_that_keeps_its_graph_gives_the_same_gradients():
    def scene(rank, model):
        loss = model(words(rank.rank)).square().mean()
        loss.backward(retain_graph=True)
        loss.backward(create_graph=True)
        return pieces(model)

    plain = fresh()
    for rank in range(2):
        (plain(words(rank)).square().mean()).backward()
    for results in in_each_form(scene):
        compare(results, plain)
