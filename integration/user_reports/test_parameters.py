"""Shapes, ties and dtypes of parameters that other systems refuse, or train wrongly."""

import copy
import warnings
from functools import partial

import pytest
import torch
from integration.user_reports.comparison import (
    agree,
    each_form,
    pieces,
    same_training,
    sharded,
    trained,
    unequal,
    values,
)
from packages.fsdp_runtime.tests.runtime.scenes import on_ranks
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.nn import functional

from sshsdp_fsdp_runtime import Update
from sshsdp_fsdp_runtime.checkpoint import load_checkpoint, save_checkpoint
from sshsdp_updates import AdamW

ADAMW = {"updates": [Update("**", AdamW(lr=1e-2))]}
plain_adamw = partial(torch.optim.AdamW, lr=1e-2)


class Tied(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.embedding(ids))


def of_tokens(rows):
    """A loss over ids, given by step and rank."""

    def loss(model, step, rank):
        return functional.cross_entropy(model(rows[step, rank, :-1]), rows[step, rank, 1:])

    return loss


@pytest.mark.parametrize("world", [2, 3, 5, 8])
def test_every_row_of_a_tied_weight_with_uneven_rows_is_trained(world):
    vocabulary = 4 * world + 1
    torch.manual_seed(0)
    model = Tied(vocabulary, 16).double()
    loss = of_tokens(torch.randint(0, vocabulary, (10, world, 8)))
    ours = sharded(model, world, loss, steps=10, **ADAMW)
    same_training(ours, trained(model, world, loss, plain_adamw, steps=10))
    assert (ours[-1][-1]["head.weight"] != model.head.weight).any(1).all()


@each_form
def test_a_weight_that_is_tied_across_two_groups_is_one_weight(options):
    torch.manual_seed(0)
    model = Tied(9, 4).double()
    loss = of_tokens(torch.randint(0, 9, (3, 2, 6)))
    ours = sharded(model, 2, loss, groups=["embedding"], **ADAMW, **options)
    same_training(ours, trained(model, 2, loss, plain_adamw))
    for step in ours[0]:
        assert torch.equal(step["embedding.weight"], step["head.weight"])


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.5))
        self.v = nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, x):
        return (self.w * x * self.v).square().sum()


class Empty(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 4))
        self.z = nn.Parameter(torch.ones(0, 4))

    def forward(self, x):
        return (x * self.w).sum() + self.z.sum()


def of_four(model, step, rank):
    return model(torch.arange(4, dtype=torch.float64) + step + rank)


@each_form
@pytest.mark.parametrize("model", [Scalar(), Empty()], ids=["scalar", "empty"])
def test_parameters_with_one_element_or_none_are_trained_and_saved_in_their_shape(
    model, options, tmp_path
):
    model = model.double()
    expected = trained(model, 2, of_four, plain_adamw)

    def save(rank, ours):
        of_four(ours, 0, rank.rank).backward()
        ours.optimizer.step()
        save_checkpoint(tmp_path / "saved", ours, {})

    def resume(rank, ours):
        load_checkpoint(tmp_path / "saved", ours)
        seen = [values(ours)]
        for step in (1, 2):
            of_four(ours, step, rank.rank).backward()
            ours.optimizer.step()
            ours.optimizer.zero_grad()
            seen.append(values(ours))
        return seen

    on_ranks(2, save, model=model, **ADAMW, **options)
    same_training(on_ranks(2, resume, model=model, **ADAMW, **options), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dcp_to_torch_save(tmp_path / "saved", tmp_path / "saved.pt")
    saved = torch.load(tmp_path / "saved.pt")["model"]
    assert {name: value.shape for name, value in saved.items()} == {
        name: value.shape for name, value in model.state_dict().items()
    }


class TwoDtypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(4, 6)
        self.narrow = nn.Linear(6, 3, dtype=torch.bfloat16)

    def forward(self, x):
        return self.narrow(self.wide(x).bfloat16()).float()


@each_form
def test_one_block_trains_weights_of_two_dtypes(options):
    torch.manual_seed(0)
    model = nn.Module()
    model.layers = nn.ModuleList([TwoDtypes()])
    x = torch.randn(5, 4)
    plain = copy.deepcopy(model)
    plain.layers[0](x).square().sum().backward()
    expected = {name: p.grad for name, p in plain.named_parameters()}

    def scene(_rank, ours):
        (group,) = [group for group in ours.plan.groups if group.atoms]
        before = values(ours)
        ours.layers[0](x).square().sum().backward()
        local = pieces(ours)
        ours.optimizer.step()
        dtypes = {atom.weight_dtype for atom in group.atoms}
        return dtypes, local, sorted(unequal(before, values(ours)))

    for dtypes, local, changed in on_ranks(2, scene, model=model, **options):
        assert dtypes == {torch.float32, torch.bfloat16}
        assert sorted(local) == changed == sorted(expected)
        agree(local, expected, rtol=2e-2, atol=1e-2)


class OfTheRoot(nn.Module):
    """Parameters of its own, beside layers that are groups."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 2))
        self.bias = nn.Parameter(torch.randn(2))
        self.layers = nn.ModuleList([nn.Linear(2, 2)])

    def forward(self, x):
        return self.layers[0](functional.linear(x, self.weight, self.bias))


@each_form
def test_parameters_of_the_model_itself_are_there_in_its_forward(options):
    torch.manual_seed(0)
    model = OfTheRoot().double()
    x = torch.randn(3, 2, dtype=torch.float64)

    def loss(model, step, rank):
        return model(x + step - rank).square().sum()

    def forward(_rank, ours):
        return ours(x).detach()

    for output in on_ranks(2, forward, model=model, **options):
        assert torch.equal(output, model(x))
    ours = sharded(model, 2, loss, **ADAMW, **options)
    same_training(ours, trained(model, 2, loss, plain_adamw))
