"""Parameters lie in memory as they like, as long as it is theirs alone."""

import copy

import pytest
import torch
from torch import nn

from sshsdp_fsdp_runtime import Update, fully_shard
from sshsdp_updates import SGD

from .scenes import on_ranks


class Odd(nn.Module):
    """Matrices that are not contiguous, two of them in one storage, and a layer of two dtypes."""

    def __init__(self):
        super().__init__()
        both = torch.randn(4, 8, dtype=torch.float64)
        self.first = nn.Linear(4, 4).double()
        self.transposed = nn.Parameter(torch.randn(4, 4, dtype=torch.float64).t())
        self.even, self.odd = nn.Parameter(both[:, ::2]), nn.Parameter(both[:, 1::2])
        self.image = nn.Conv2d(2, 3, 2).double().to(memory_format=torch.channels_last)
        self.narrow = nn.Linear(4, 4)

    def forward(self, x):
        y = torch.tanh(self.first(x) @ self.transposed @ self.even + x @ self.odd)
        y = y + self.narrow(y.float()).double()
        return self.image(y.view(1, 2, 2, -1)).square().mean()


@pytest.mark.parametrize("form", ["shared", "private"])
def test_strides_do_not_change_a_training_nor_do_the_modes_in_which_it_is_looked_at(form):
    torch.manual_seed(0)
    plain = Odd()
    x = torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4)

    def scene(_rank, model):
        for _ in range(3):
            with torch.inference_mode():
                looked = model.eval()(x)
            with torch.no_grad():
                assert model(x) == looked
            loss = model.train()(x)
            assert loss.item() == looked.item()
            loss.backward()
            model.optimizer.step()
            model.optimizer.zero_grad()
        return dict(model.full_state_dict()), sum(p.numel() for p in model.parameters())

    results = on_ranks(2, scene, model=plain, form=form, updates=[Update("**", SGD(lr=0.1))])
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        plain(x).backward()
        optimizer.step()
        optimizer.zero_grad()
    for state, numel in results:
        assert numel == sum(p.numel() for p in plain.parameters())
        for name, value in plain.state_dict().items():
            double = value.dtype is torch.float64
            tolerance = {"rtol": 1e-9, "atol": 1e-9} if double else {"rtol": 1e-5, "atol": 1e-6}
            torch.testing.assert_close(state[name], value, **tolerance)


def part_of_another(model):
    model.part = nn.Parameter(model.first.weight.data[1:3])


def expanded(model):
    model.part = nn.Parameter(torch.randn(1, 4).expand(4, 4))


def complex_numbers(model):
    model.part = nn.Parameter(torch.randn(2, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (part_of_another, r"'part' that shares some with 'first\.weight'"),
        (expanded, r"'part' with strides \(0, 1\) for shape \(4, 4\)"),
        (complex_numbers, r"real parameters to train, got 'part' of torch\.complex64"),
    ],
)
def test_parameters_whose_memory_is_not_theirs_alone_are_refused_by_name(change, text):
    model = Odd()
    change(model)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TypeError, match=text):
        fully_shard(model)
    assert type(model) is Odd
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    fully_shard(model, ignored=["part", "first.**"]).close()
