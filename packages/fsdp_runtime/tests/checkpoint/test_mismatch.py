"""A checkpoint of another model is one error, alike on all ranks, before anything changes."""

import dataclasses

import pytest
import torch
from packages.fsdp_runtime.tests.checkpoint.cut_model import SHAPES, CutModel, StoreTransport
from testing.ranks import run_ranks
from torch import nn

from sshsdp_fsdp_runtime import Update, fully_shard
from sshsdp_fsdp_runtime.checkpoint import (
    CheckpointError,
    CheckpointMismatchError,
    load_checkpoint,
    save_checkpoint,
)
from sshsdp_updates import SGD, AdamW


@pytest.fixture
def saved(tmp_path):
    save_checkpoint(tmp_path / "saved", CutModel(StoreTransport(0, 1)), {})
    return tmp_path / "saved"


def load_other(rank, path, shapes):
    transport = StoreTransport(rank.rank, rank.world, rank.store)
    model = CutModel(transport, shapes=shapes, filled=False)
    with pytest.raises(CheckpointMismatchError) as error:
        load_checkpoint(path, model)
    assert all(entry.tensor.isnan().all() for entry in model.entries)
    assert model.loaded == 0
    assert model.scalars["param_groups"] == []
    return str(error.value)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"matrix": (5, 7)}, "model.matrix: expected float32[5, 7], got float32[7, 5]"),
        ({"wide": (3,)}, "model.wide: expected float32[3], got no such tensor"),
        ({"matrix": None}, "model.matrix: expected no such tensor, got float32[7, 5]"),
    ],
)
def test_all_ranks_name_the_first_difference_and_change_nothing(saved, changes, difference):
    shapes = {name: shape for name, shape in (SHAPES | changes).items() if shape is not None}
    texts = run_ranks(load_other, 2, saved, shapes)
    assert texts[0] == texts[1]
    assert difference in texts[0]


def test_many_differences_are_counted(saved):
    (text,) = run_ranks(load_other, 1, saved, dict.fromkeys(SHAPES, (1, 1, 1)))
    assert text.count("expected float32[1, 1, 1]") == 5
    assert f"and {3 * len(SHAPES) - 5} more" in text


def test_another_dtype_is_another_model(saved):
    model = CutModel(StoreTransport(0, 1))
    first = model.entries[0]
    model.entries[0] = dataclasses.replace(
        first, dtype=torch.float64, tensor=first.tensor.to(torch.float64)
    )
    with pytest.raises(CheckpointMismatchError, match=r"expected float64\[7, 5\], got float32"):
        load_checkpoint(saved, model)


def save_different(rank, path, what):
    transport = StoreTransport(rank.rank, rank.world, rank.store)
    model = CutModel(transport)
    if rank.rank == 1:
        model = CutModel(transport, shapes=SHAPES | {"matrix": (5, 7)})
    if what == "scalars":
        model = CutModel(transport)
        model.scalars["steps"] = rank.rank
    with pytest.raises(CheckpointError, match=f"the same {what} on all ranks.*on rank 1"):
        save_checkpoint(path, model, {})
    assert not path.exists()


@pytest.mark.parametrize("what", ["tensors", "scalars"])
def test_ranks_with_different_models_do_not_save(tmp_path, what):
    run_ranks(save_different, 2, tmp_path / "saved", what)


def save_twice_written(rank, path):
    model = CutModel(StoreTransport(rank.rank, rank.world, rank.store), zero1=1)
    shifted = rank.rank == 1
    for i, entry in enumerate(model.entries):
        stop = entry.stop - 1 if shifted and entry.stop > entry.start else entry.stop
        model.entries[i] = dataclasses.replace(
            entry, stop=stop, tensor=entry.tensor[: stop - entry.start], writes=True
        )
    # torch's own check, which before 2.13 may say no more than that there is a fault.
    text = "overlapping" if torch.__version__ >= (2, 13) else "validate global plan"
    with pytest.raises(CheckpointError, match=text):
        save_checkpoint(path, model, {})


def test_two_replicas_that_write_different_rectangles_are_refused(tmp_path):
    run_ranks(save_twice_written, 2, tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": "weights.x"}, r"'model.<name>' or 'optimizer.state.<name>.<field>', got"),
        ({"key": "optimizer.state.x"}, r"'optimizer.state.<name>.<field>', got"),
        ({"stop": 3}, r"expected 3 elements of torch.float32 for 'model.matrix', got 35"),
        ({"key": "model.cube"}, r"expected distinct keys, got 'model.cube' twice"),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(tmp_path, change, message):
    model = CutModel(StoreTransport(0, 1))
    model.entries[0] = dataclasses.replace(model.entries[0], **change)
    with pytest.raises(CheckpointError, match=message):
        save_checkpoint(tmp_path / "saved", model, {})


def trained(seed, rule):
    torch.manual_seed(seed)
    model = fully_shard(nn.Sequential(nn.Linear(4, 3)), updates=[Update("**", rule)])
    model(torch.ones(2, 4)).sum().backward()
    model.optimizer.step()
    return model


def load_into_another_optimizer(_rank, path):
    source, model = trained(0, AdamW()), trained(1, SGD(momentum=0.9))
    save_checkpoint(path, source, {})
    with pytest.raises(CheckpointMismatchError, match=r'saved model had, or .* fresh=\["\*\*"\]'):
        load_checkpoint(path, model)
    wanted = source.full_state_dict()
    assert not model.full_state_dict()["0.weight"].equal(wanted["0.weight"])
    load_checkpoint(path, model, fresh=["**"])
    assert all(value.equal(wanted[name]) for name, value in model.full_state_dict().items())
    other = fully_shard(nn.Sequential(nn.Linear(4, 5)))
    with pytest.raises(CheckpointMismatchError, match=r"load it into the model that saved it$"):
        load_checkpoint(path, other)


def test_weights_alone_go_to_a_model_with_another_optimizer_as_the_error_says(tmp_path):
    run_ranks(load_into_another_optimizer, 1, tmp_path / "saved")
