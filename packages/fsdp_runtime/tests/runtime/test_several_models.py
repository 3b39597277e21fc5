"""Models beside each other, inside each other, and beside parameters that nobody shards."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from sshsdp_fsdp_runtime import PlanError, Update, deferred_init, fully_shard
from sshsdp_updates import SGD

from .scenes import on_ranks

WIDTH, STEPS = 6, 3
FORMS = [{"form": "shared"}, {"form": "private", "poison": True, "slots": 1}]
each_form = pytest.mark.parametrize("options", FORMS, ids=["shared", "private"])
SHARD = {"updates": [Update("**", SGD(lr=0.1, momentum=0.9))], "groups": ["*"]}


def network(seed, last=WIDTH):
    torch.manual_seed(seed)
    block = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)) for _ in range(2)]
    return nn.Sequential(*block, nn.Linear(WIDTH, last)).double()


def optimizer_of(model):
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1, momentum=0.9)


def noise(step, rank, kind=0):
    generator = torch.Generator().manual_seed(100 * step + 10 * kind + rank)
    return torch.randn(4, WIDTH, generator=generator, dtype=torch.float64)


def same(states, plain):
    for state in states:
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-10, atol=1e-12)


def adversarial(generator, discriminator, optimizers, ranks):
    """Two models, two optimizers; gradients flow through one into the other, and are dropped."""
    for step in range(STEPS):
        for rank in ranks:
            fake = generator(noise(step, rank)).detach()
            real = functional.softplus(-discriminator(noise(step, rank, 1))).mean()
            ((real + functional.softplus(discriminator(fake)).mean()) / len(ranks)).backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        discriminator.requires_grad_(step == 1)  # frozen for the generator's turn, or not
        for rank in ranks:
            score = discriminator(generator(noise(step, rank, 2)))
            (functional.softplus(-score).mean() / len(ranks)).backward()
        discriminator.requires_grad_(True)
        optimizers[0].step()
        for optimizer in optimizers:
            optimizer.zero_grad()


@each_form
def test_two_models_train_against_each_other(options):
    def scene(rank, discriminator):
        transport = discriminator.transport
        generator = fully_shard(network(1), transport=transport, **SHARD, **options)
        models = (generator, discriminator)
        adversarial(*models, [model.optimizer for model in models], [rank.rank])
        states = [model.full_state_dict() for model in models]
        generator.close()
        return states

    models = network(1), network(2, last=1)
    adversarial(*models, [optimizer_of(model) for model in models], [0, 1])
    results = on_ranks(2, scene, model=network(2, last=1), **SHARD, **options)
    for index, plain in enumerate(models):
        same([states[index] for states in results], plain)


@each_form
def test_a_frozen_teacher_stands_still_and_keeps_nothing_gathered(options):
    def distil(teacher, student, optimizer, ranks):
        for step in range(STEPS):
            for rank in ranks:
                x = noise(step, rank).requires_grad_()
                # The second part goes back through the teacher into the student.
                loss = functional.mse_loss(student(x), teacher(x).detach())
                ((loss + teacher(student(x)).square().mean()) / len(ranks)).backward()
            optimizer.step()
            optimizer.zero_grad()

    def scene(rank, student):
        teacher = network(1).requires_grad_(False)
        teacher = fully_shard(teacher, transport=student.transport, groups=["*"], **options)
        distil(teacher, student, student.optimizer, [rank.rank])
        groups = teacher._sharded.weights.values()
        left = [group.plan.label for group in groups if group.releases and group.ready]
        result = student.full_state_dict(), teacher.full_state_dict(), left
        teacher.close()
        return result

    teacher, student = network(1).requires_grad_(False), network(2)
    distil(teacher, student, optimizer_of(student), [0, 1])
    results = on_ranks(2, scene, model=network(2), **SHARD, **options)
    same([result[0] for result in results], student)
    same([result[1] for result in results], teacher)
    assert [left for _, _, left in results] == [[], []]


class Outer(nn.Module):
    """Another model inside, a parameter that differs between ranks, and buffers of all kinds."""

    def __init__(self, inner, own):
        super().__init__()
        self.inner, self.own = inner, nn.Parameter(own)
        self.first = nn.Linear(WIDTH, WIDTH).double()
        self.norm = nn.BatchNorm1d(WIDTH).double()
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("table", torch.linspace(0, 1, WIDTH).double(), persistent=False)

    def forward(self, x):
        self.count += 1
        return self.inner(self.norm(self.first(x)) * self.own + self.table)


def outer(rank, inner):
    torch.manual_seed(3)
    return Outer(inner, torch.full((WIDTH,), rank + 1.0, dtype=torch.float64))


@each_form
def test_ignored_parameters_stay_the_users_own(options):
    def scene(rank, inner):
        model = outer(rank.rank, inner)
        own = model.own
        ignored = ["own", "inner.**"]
        model = fully_shard(
            model,
            transport=inner.transport,
            updates=SHARD["updates"],
            ignored=ignored,
            **options,
        )
        assert type(own) is nn.Parameter
        assert "ignored: own (6,)" in model.plan.describe()
        mine = torch.optim.SGD([own], lr=0.1)
        for step in range(STEPS):
            model(noise(step, rank.rank)).square().mean().backward()
            assert own.grad is not None
            for optimizer in (model.optimizer, inner.optimizer, mine):
                optimizer.step()
            inner.zero_grad()
            model.zero_grad()
            assert own.grad is None
        state = model.full_state_dict()
        result = own.detach(), state, inner.full_state_dict(), model.norm.running_mean
        model.close()
        return result

    # Plain: a model per rank, whose shared parameters get the mean of all gradients.
    plain = [outer(rank, network(1)) for rank in range(2)]
    optimizers = [[optimizer_of(m)] for m in plain]
    for rank, model in enumerate(plain):
        shared = [p for p in model.parameters() if p is not model.own]
        optimizers[rank] = [
            torch.optim.SGD(shared, 0.1, momentum=0.9),
            torch.optim.SGD([model.own], 0.1),
        ]
    for step in range(STEPS):
        for rank, model in enumerate(plain):
            model(noise(step, rank)).square().mean().backward()
        for first, second in zip(*(m.named_parameters() for m in plain), strict=True):
            if first[0] != "own":
                mean = (first[1].grad + second[1].grad) / 2
                first[1].grad, second[1].grad = mean, mean.clone()
        for rank, model in enumerate(plain):
            for optimizer in optimizers[rank]:
                optimizer.step()
            model.zero_grad()
    results = on_ranks(2, scene, model=network(1), **SHARD, **options)
    for model, (own, state, inner, mean) in zip(plain, results, strict=True):
        torch.testing.assert_close(own, model.own.detach())
        torch.testing.assert_close(mean, model.norm.running_mean)  # each rank's own
        assert "own" not in state
        assert not any(name.startswith("inner") for name in state)
        assert state["count"].item() == STEPS
        for name in ("first.weight", "norm.weight", "norm.bias"):
            torch.testing.assert_close(state[name], model.state_dict()[name])
        same([inner], model.inner)


def test_a_pattern_that_ignores_nothing_and_a_model_without_values_are_refused():
    with pytest.raises(PlanError, match=r"pattern of `ignored` to match a parameter, got 'x\.\*'"):
        fully_shard(network(0), ignored=["x.*"])
    with deferred_init():
        model = network(0)
    with pytest.raises(PlanError, match="a model with values where parameters are ignored"):
        fully_shard(model, ignored=["0.**"])


def test_a_tied_parameter_is_ignored_under_all_its_names():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 1))
    model[1].weight = model[0].weight
    plain = copy.deepcopy(model)
    sharded = fully_shard(model, ignored=["1.weight"])
    x = torch.ones(2, 3)
    sharded(x).sum().backward()
    plain(x).sum().backward()
    torch.testing.assert_close(sharded[0].weight.grad, plain[0].weight.grad)
    assert sorted(sharded.full_state_dict()) == ["2.bias", "2.weight"]
