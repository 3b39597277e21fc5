"""What a sharded model can't do is an error that says what to do instead, and changes nothing."""

import copy
import io
import pickle
from dataclasses import dataclass

import pytest
import safetensors.torch
import torch
from testing.models import TiedModel
from torch import nn

from sshsdp_fsdp_runtime import Update, deferred_init, fully_shard
from sshsdp_updates import SGD, Stage

from .scenes import ids, on_ranks


@pytest.fixture
def model():
    sharded = fully_shard(TiedModel())
    yield sharded
    sharded.close()


def test_a_model_is_sharded_once(model):
    with pytest.raises(TypeError, match="got one that is sharded already"):
        fully_shard(model)


@pytest.mark.parametrize("copied", ["model", "parameter", "layer"])
def test_copies_are_refused(model, copied):
    what = {"model": model, "parameter": model.gain, "layer": model.layers[0]}[copied]
    with pytest.raises(RuntimeError, match=r"full_state_dict\(\), or build the copy before"):
        copy.deepcopy(what)


def test_pickling_is_refused(model):
    with pytest.raises(RuntimeError, match="stay in this process, got pickle"):
        pickle.dumps(model)


@pytest.mark.parametrize(
    "move",
    [lambda m: m.to(torch.float64), lambda m: m.half(), lambda m: m.double(), lambda m: m.cpu()],
    ids=["to", "half", "double", "cpu"],
)
def test_a_sharded_model_keeps_its_device_and_dtype(model, move):
    with pytest.raises(RuntimeError, match="move and cast the model before fully_shard"):
        move(model)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_parameter_replaced_after_sharding_is_found_by_the_next_forward(model):
    model(ids())
    kept, model.layers[1].scale = model.layers[1].scale, nn.Parameter(torch.tensor(0.7))
    with pytest.raises(RuntimeError, match=r"'layers\.1\.scale' that was sharded, got another"):
        model(ids())
    model.layers[1].scale = kept
    model(ids())


@pytest.mark.parametrize("name", ["optimizer", "plan", "transport"])
def test_a_name_that_the_model_has_already_is_refused(name):
    model = TiedModel()
    setattr(model, name, "mine")
    with pytest.raises(TypeError, match=f"without an attribute '{name}'.*rename it"):
        fully_shard(model)
    assert type(model) is TiedModel
    assert getattr(model, name) == "mine"


def test_a_model_that_is_on_the_meta_device_in_part_is_refused():
    model = TiedModel()
    model.head = torch.nn.Linear(5, 13, device="meta")
    with pytest.raises(RuntimeError, match=r"got 'head\.weight' that is on the meta device"):
        fully_shard(model)


def test_an_incomplete_environment_is_named(monkeypatch):
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(RuntimeError, match="WORLD_SIZE=2, got none of MASTER_ADDR, MASTER_PORT"):
        fully_shard(TiedModel())


FAIL: list[bool] = []


@dataclass(frozen=True)
class Failing(SGD):
    """Raises at the end of its stage once `FAIL` holds something, so that weights are torn."""

    def stages(self):
        (stage,) = super().stages()

        def fail(operands, scalars):
            stage.function(operands, scalars)
            if FAIL:
                raise ArithmeticError("half-way")

        return (Stage(stage.name, fail, stage.operands),)


def test_an_update_that_fails_half_way_leaves_a_model_to_be_loaded_anew():
    def scene(_rank, model):
        wanted = {name: value.clone() for name, value in model.full_state_dict().items()}
        model(ids()).sum().backward()
        FAIL.append(True)
        with pytest.raises(ArithmeticError, match="half-way"):
            model.optimizer.step()
        with pytest.raises(RuntimeError, match="failed half-way; load a checkpoint"):
            model(ids())
        model.load_state_dict(wanted)
        model(ids())
        state = model.full_state_dict()
        return all(torch.equal(state[name], value) for name, value in wanted.items())

    assert on_ranks(2, scene, updates=[Update("**", Failing(lr=0.1))]) == [True, True]


def test_a_module_that_was_replaced_is_named():
    model = fully_shard(TiedModel())
    model.layers[1].up = torch.nn.Linear(5, 7)
    with pytest.raises(RuntimeError, match=r"'layers\.1\.up\.weight'.*before fully_shard\(\)"):
        model(ids())


def test_a_module_that_was_wrapped_goes_on():
    model = fully_shard(TiedModel())
    expected = model(ids())
    model.layers[1].up = torch.nn.Sequential(model.layers[1].up)
    for _ in range(2):
        assert model(ids()).equal(expected)


def test_a_frozen_model_says_that_it_has_no_optimizer():
    with pytest.raises(RuntimeError, match=r"got a model that is frozen; unfreeze before fully_"):
        fully_shard(TiedModel().requires_grad_(False)).optimizer  # noqa: B018


def test_a_model_of_which_a_part_is_sharded_already_asks_for_one_call():
    model = TiedModel()
    fully_shard(model.layers[0])
    with pytest.raises(TypeError, match=r"'layers\.0\..*one call for the whole.*groups=\["):
        fully_shard(model)


def test_the_class_keeps_its_name():
    model = fully_shard(TiedModel())
    assert type(model).__name__ == "TiedModel"
    assert type(model).__module__ == TiedModel.__module__
    assert isinstance(model, TiedModel)


@pytest.mark.parametrize(
    "save",
    [
        lambda values: torch.save(values, io.BytesIO()),
        lambda values: pickle.dumps(values["gain"]),
        lambda values: safetensors.torch.save(dict(values)),
        lambda values: values["gain"].storage().data_ptr(),  # save_pretrained without state_dict=
        lambda values: values["gain"].untyped_storage(),
    ],
    ids=["torch.save", "pickle", "safetensors", "storage", "untyped_storage"],
)
def test_a_fragment_is_not_saved_in_the_place_of_a_tensor(model, save):
    with pytest.raises(TypeError, match=r"one rank's fragment .*save model\.full_state_dict\(\)"):
        save(model.state_dict())


def test_parameters_are_not_handed_out_by_state_dict(model):
    with pytest.raises(TypeError, match="expected keep_vars=False, got True"):
        model.state_dict(keep_vars=True)


def test_a_layer_does_not_load_by_itself(model):
    before = {name: value.clone() for name, value in model.full_state_dict().items()}
    state = {name: torch.zeros_like(value) for name, value in model.layers[0].state_dict().items()}
    for whole, values in ((model.layers[0], state), (nn.Sequential(model), before)):
        wanted = {f"0.{n}": v for n, v in values.items()} if whole is not model.layers[0] else state
        with pytest.raises(RuntimeError, match=r"model\.unsharded\("):
            whole.load_state_dict(wanted)
    after = model.full_state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_sparse_gradient_that_no_layer_announced_is_named():
    model = nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 3))
    sharded = fully_shard(model)
    model[0].sparse = True
    with pytest.raises(RuntimeError, match=r"got a sparse one of '0\.weight'; use embeddings with"):
        sharded(torch.tensor([1, 2])).sum().backward()
    sharded.close()


@pytest.mark.parametrize("make", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_refused_by_name(make):
    def build():
        return nn.Sequential(make(11, 4, sparse=True), nn.Linear(4, 3))

    text = rf"got '0\.weight' of {make.__name__}\(sparse=True\); build it with sparse=False"
    with pytest.raises(TypeError, match=text):
        fully_shard(build())
    with deferred_init():
        deferred = build()
    with pytest.raises(TypeError, match=text):
        fully_shard(deferred)
    words = torch.tensor([[1, 2]])
    for model, ignored in ((build(), ["0.**"]), (build(), ())):
        model[0].weight.requires_grad_(bool(ignored))
        sharded = fully_shard(model, ignored=ignored)
        sharded(words).sum().backward()
        assert (model[0].weight.grad is None) == (not ignored)
        sharded.close()
