"""User code that raises leaves a model that can be used, on the rank that raised and elsewhere."""

from itertools import chain

import pytest
import torch
from testing.ranks import RankError
from torch import nn
from torch.utils.checkpoint import checkpoint

from sshsdp_fsdp_runtime import Sharding, Update
from sshsdp_fsdp_runtime.runtime import direct
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD

from .scenes import on_ranks, on_ranks_in_turn

WIDTH, BLOCKS = 6, 4
FORMS = [
    {"form": "shared"},
    {"form": "private", "poison": True, "slots": 1},
    {"form": "private", "poison": True, "sharding": [Sharding("**", Degrees(1, 1, 1))]},
]


class Boom(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return x.clone()

    @staticmethod
    def backward(_ctx, _dy):
        raise ArithmeticError("boom")


class Fragile(nn.Module):
    """Raises where its input says: before block `at`, on the way there or on the way back."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)) for _ in range(BLOCKS)
        )

    def forward(self, x, fault="", at=0):
        for index, layer in enumerate(self.layers):
            if index == at and fault == "forward":
                layer = nn.Sequential(layer, Raising())
            if index == at and fault == "backward":
                x = Boom.apply(x)
            if index == at and fault == "recompute":
                x = checkpoint(RaisingLater(layer), x, use_reentrant=False)
            else:
                x = x + layer(x)
        return x.square().mean()


class Raising(nn.Module):
    def forward(self, _x):
        raise ArithmeticError("boom")


class RaisingLater(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.calls = [layer], 0  # in a list: it is a part of another module

    def forward(self, x):
        self.calls += 1
        if self.calls > 1:
            raise ArithmeticError("boom")
        return x + self.layer[0](x)


def data(rank, index=0):
    generator = torch.Generator().manual_seed(10 * rank + index)
    return torch.randn(3, WIDTH, generator=generator, dtype=torch.float64)


def fresh():
    torch.manual_seed(0)
    return Fragile().double()


def in_each_form(scene, **options):
    """What each of two ranks returned, form by form."""
    cases = [{"model": fresh()} | form | options for form in FORMS]
    return chain.from_iterable(on_ranks_in_turn(2, scene, cases))


def attempt(model, rank, index, fault, at, scale=1.0):
    with pytest.raises(ArithmeticError, match="boom"):
        (model(data(rank, index), fault, at) * scale).backward()


def nothing_left(model):
    """No group is gathered or held, no slot of gradients is taken for writing."""
    state = model._sharded
    weights = [g.plan.label for g in state.weights.values() if g.releases and (g.ready or g.active)]
    return weights, [g.plan.label for g in state.passes.groups if g.opened]


@pytest.mark.parametrize("fault", ["backward", "recompute"])
@pytest.mark.parametrize("raising", [(0, 1), (1,)], ids=["all", "one"])
def test_what_a_broken_backward_had_computed_stays_as_in_plain_pytorch(fault, raising):
    def scene(rank, model):
        for step in range(3):
            if rank.rank in raising:
                attempt(model, rank.rank, step, fault, at=2)
            else:
                model(data(rank.rank, step)).backward()
            model(data(rank.rank, 5 + step)).backward()
            left = nothing_left(model)
            model.optimizer.step()
            model.optimizer.zero_grad()
        return left, model.full_state_dict()

    plain = fresh()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(3):
        for rank in range(2):
            if rank in raising:
                attempt(plain, rank, step, fault, at=2, scale=0.5)
            else:
                (plain(data(rank, step)) / 2).backward()
            (plain(data(rank, 5 + step)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    for left, state in in_each_form(scene, updates=[Update("**", SGD(lr=0.1))]):
        assert left == ([], [])
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-10, atol=1e-12)


def test_a_round_that_broke_can_be_dropped_by_all():
    def scene(rank, model):
        if rank.rank == 1:
            attempt(model, rank.rank, 0, "backward", at=1)
        else:
            model(data(rank.rank)).backward()
        model.zero_grad()
        model(data(rank.rank, 1)).backward()
        return {
            name: (p.grad.fragment.start, p.grad.local.clone())
            for name, p in model.named_parameters()
        }

    plain = fresh()
    for rank in range(2):
        (plain(data(rank, 1)) / 2).backward()
    for pieces in in_each_form(scene):
        for name, (start, piece) in pieces.items():
            whole = plain.get_parameter(name).grad.flatten()
            torch.testing.assert_close(
                piece, whole[start : start + piece.numel()], rtol=1e-10, atol=1e-12
            )


def test_a_forward_that_raises_can_be_repeated_or_left_out():
    def scene(rank, model):
        if rank.rank == 1:
            for at in range(BLOCKS):
                attempt(model, rank.rank, 0, "forward", at)
                assert nothing_left(model) == ([], [])
            model(data(rank.rank, 0)).backward()  # again, with better luck
        else:
            model(data(rank.rank, 0)).backward()
            attempt(model, rank.rank, 1, "forward", 2)  # left out: the other rank has one more
        if rank.rank == 1:
            model(data(rank.rank, 1)).backward()
        model.join()
        model.optimizer.step()
        return model.full_state_dict()

    plain = fresh()
    for rank, index in ((0, 0), (1, 0), (1, 1)):
        (plain(data(rank, index)) / 2).backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    for state in in_each_form(scene, updates=[Update("**", SGD(lr=0.1))]):
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-10, atol=1e-12)


def test_the_graph_of_another_forward_may_follow_a_broken_backward_at_once():
    def scene(rank, model):
        fault = "backward" if rank.rank == 1 else ""
        first, second = model(data(rank.rank, 0), fault, 2), model(data(rank.rank, 1))
        if fault:
            with pytest.raises(ArithmeticError, match="boom"):
                first.backward()
        else:
            first.backward()
        second.backward()  # no forward between the two
        gradients = {name: p.grad for name, p in model.named_parameters()}
        return {n: (g.fragment.start, g.local.clone()) for n, g in gradients.items()}

    plain = fresh()
    (plain(data(0, 0)) / 2).backward()
    attempt(plain, 1, 0, "backward", 2, scale=0.5)
    for rank in range(2):
        (plain(data(rank, 1)) / 2).backward()
    for pieces in in_each_form(scene):
        for name, (start, piece) in pieces.items():
            whole = plain.get_parameter(name).grad.flatten()[start : start + piece.numel()]
            torch.testing.assert_close(piece, whole, rtol=1e-10, atol=1e-12)


def test_other_ranks_go_on_as_soon_as_the_model_is_used_again():
    def scene(rank, model):
        if rank.rank == 1:
            attempt(model, rank.rank, 0, "backward", 2)
            with torch.no_grad():
                model(data(rank.rank))
            model.transport.barrier()  # the other comes here when its gradients are complete
            model(data(rank.rank)).backward()
        else:
            model(data(rank.rank)).backward()
            loss = model(data(rank.rank))
            model._sharded.passes.drain()
            model.transport.barrier()
            loss.backward()
        model.optimizer.step()
        return True

    assert list(in_each_form(scene)) == [True] * 2 * len(FORMS)


def test_a_gradient_that_could_not_be_written_counts_as_none(monkeypatch):
    def scene(rank, model):
        def fail(*_):
            raise MemoryError("no room")

        loss = model(data(rank.rank))
        if rank.rank == 1:
            with monkeypatch.context() as patch, pytest.raises(MemoryError):  # noqa: PT012
                patch.setattr(direct, "write_product", fail)
                loss.backward()
        else:
            loss.backward()
        weight = model.layers[3][0].weight
        return weight.grad.fragment.start, weight.grad.local.clone()

    plain = fresh()
    (plain(data(0)) / 2).backward()
    expected = plain.layers[3][0].weight.grad.flatten()
    for start, piece in on_ranks(2, scene, model=fresh(), form="private", poison=True):
        torch.testing.assert_close(piece, expected[start : start + piece.numel()])


def test_gradients_that_one_rank_drops_alone_are_a_named_error_everywhere():
    def scene(rank, model):
        model(data(rank.rank)).backward()
        if rank.rank == 1:
            model.zero_grad()
        model(data(rank.rank, 1)).backward()
        model.optimizer.step()

    with pytest.raises(RankError) as caught:
        on_ranks(2, scene, model=fresh())
    assert str(caught.value).count("some that called zero_grad() after a backward") >= 2


def test_finished_gradients_are_refused_inside_a_backward():
    def scene(rank, model):
        loss = model(data(rank.rank))
        loss.register_hook(lambda _gradient: model.layers[3][0].weight.grad.norm())
        with pytest.raises(RuntimeError, match="expected the running backward to end first"):
            loss.backward()
        model.zero_grad()
        model(data(rank.rank)).backward()
        model.optimizer.step()
        return True

    assert on_ranks(2, scene, model=fresh()) == [True, True]
