"""What is added to a model after it was sharded is found by its next forward."""

import pytest
import torch
from testing.models import TiedModel
from torch import nn

from sshsdp_fsdp_runtime import fully_shard

from .scenes import ids


@pytest.fixture
def model():
    sharded = fully_shard(TiedModel())
    sharded(ids())
    yield sharded
    sharded.close()


class Named(nn.Module):
    """A layer of the width of the model."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5))

    def forward(self, x):
        return x * self.weight


def replace_an_activation(model):
    model.layers[1].act = nn.Identity()
    model(ids())
    model.layers[1].act = Named()


def fill_an_empty_place(model):
    model.layers[0].down.bias = nn.Parameter(torch.zeros(5))


@pytest.mark.parametrize(
    ("add", "name"),
    [
        (lambda m: m.layers.append(Named()), "layers.3.weight"),
        (lambda m: m.register_module("extra", nn.Sequential(Named())), "extra.0.weight"),
        (lambda m: m.layers[1].norm.register_parameter("x", nn.Parameter(torch.ones(1))), "norm.x"),
        (replace_an_activation, "layers.1.act.weight"),
        (fill_an_empty_place, "layers.0.down.bias"),
    ],
    ids=["appended", "registered", "parameter", "in place of an activation", "in place of None"],
)
def test_an_added_layer_or_parameter_is_named(model, add, name):
    add(model)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"before fully_shard\(\).*ignored=") as raised:
            model(ids())
        assert name in str(raised.value)


def test_a_model_goes_on_once_the_addition_is_taken_back(model):
    model.extra = Named()
    with pytest.raises(RuntimeError, match=r"1 in addition: 'extra\.weight'"):
        model(ids())
    del model.extra
    model(ids())


def test_a_removed_parameter_is_named(model):
    del model.layers[2].unused
    with pytest.raises(RuntimeError, match=r"'layers\.2\.unused' that was sharded, got another"):
        model(ids())


def test_buffers_modules_without_parameters_and_further_names_may_be_added(model):
    expected = model(ids())
    model.register_buffer("mask", torch.ones(3))
    model.layers[0].act = nn.Sequential(nn.GELU(), nn.Dropout())
    model.second_head = nn.Linear(5, 13, bias=False)
    model.second_head.weight = model.embedding.weight
    for _ in range(2):
        assert model(ids()).equal(expected)


def test_ignored_parameters_may_be_replaced_and_moved():
    ours = TiedModel()
    ours.layers.append(Named())
    with fully_shard(ours, ignored=["layers.3.weight"]).transport:
        ours(ids())
        ours.layers[3].weight = nn.Parameter(torch.zeros(5))
        ours(ids())
        ours.layers[3] = nn.Sequential(ours.layers[3])
        ours(ids())
        ours.close()
