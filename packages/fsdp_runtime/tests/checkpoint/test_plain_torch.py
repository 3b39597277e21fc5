"""Weights and optimizer state travel to plain PyTorch and FSDP2, and back, by name and exactly."""

import copy
import warnings
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from packages.fsdp_runtime.tests.runtime.scenes import sharded
from testing.ranks import run_ranks
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard as fsdp2

from sshsdp_fsdp_runtime import Update, fully_shard, is_matrix
from sshsdp_fsdp_runtime.checkpoint import (
    CheckpointError,
    CheckpointMismatchError,
    load_torch_checkpoint,
    save_checkpoint,
)
from sshsdp_updates import SGD, AdamW, Muon, TorchRule
from sshsdp_zerosm import connect

STEPS = 3


class Tied(nn.Module):
    """Two linear layers with biases between an embedding and the same matrix."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


class Matrices(nn.Module):
    """Nothing but matrices, since torch's Muon takes no others."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(7, 7, bias=False) for _ in range(2))

    def forward(self, ids):
        x = one_hot(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def one_hot(ids):
    return nn.functional.one_hot(ids % 7, 7).float()


def adamw_updates():
    shared = {"lr": 3e-3, "betas": (0.8, 0.95), "eps": 1e-7}
    return [
        Update("**", AdamW(**shared, weight_decay=0.2), where=is_matrix),
        Update("**", AdamW(**shared, weight_decay=0.0)),
    ]


def torch_adamw(parameters):
    matrices = [p for p in parameters if p.ndim == 2]
    others = [p for p in parameters if p.ndim != 2]
    groups = [{"params": matrices, "weight_decay": 0.2}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-3, betas=(0.8, 0.95), eps=1e-7)


def torch_sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-1, momentum=0.9, nesterov=True, weight_decay=0.1)


def torch_muon(parameters):
    return torch.optim.Muon(parameters, lr=1e-2, momentum=0.9)


CASES = {
    "adamw": (Tied, adamw_updates, torch_adamw),
    "sgd": (
        Tied,
        lambda: [Update("**", SGD(lr=1e-1, momentum=0.9, nesterov=True, weight_decay=0.1))],
        torch_sgd,
    ),
    "muon": (Matrices, lambda: [Update("**", Muon(lr=1e-2, momentum=0.9))], torch_muon),
    "nadam": (  # keeps numbers beside tensors
        Tied,
        lambda: [Update("**", TorchRule(torch.optim.NAdam, lr=1e-2, momentum_decay=0.1))],
        lambda parameters: torch.optim.NAdam(parameters, lr=1e-2, momentum_decay=0.1),
    ),
}
each_case = pytest.mark.parametrize("case", CASES)


def fresh(case, seed):
    torch.manual_seed(seed)
    return CASES[case][0]()


def other_hyperparameters(optimizer):
    """As a fresh program has them, so that one sees whether they are loaded."""
    for group in optimizer.param_groups:
        group.update({"lr": 77.0, "weight_decay": 0.5})
        if "betas" in group:
            group["betas"] = (0.1, 0.2)


def train(model, optimizer, steps):
    losses = []
    for step in steps:
        ids = torch.randint(0, 11, (2, 5), generator=torch.Generator().manual_seed(step))
        loss = model(ids).logsumexp(-1).mean() + model(ids).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def quiet(function, *args, **kwargs):
    """Torch warns where a plain program loads, and where FSDP2 meets gloo."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)


def close(values):
    return pytest.approx(values, rel=1e-5, abs=1e-6)


def on_ranks(world, surroundings, scene, folders):
    """By case what rank 0 returned of ``scene(what surrounds it, case, its folder)``; all agree.

    Ranks start once, since the first use of FSDP2 in a process takes longer than all that follows.
    """

    def main(rank):
        answers = {}
        with surroundings(rank) as around:
            for case, folder in folders.items():
                try:
                    answers[case] = scene(around, case, folder)
                except BaseException as error:
                    error.add_note(f"in the case {case}")
                    raise
        return answers

    first, *others = run_ranks(main, world)
    assert others == [first] * (world - 1)
    return first


def ours_alone(rank):
    return connect(rank.rank, rank.world, rank.store, timeout=20)


@contextmanager
def process_group(rank):
    dist.init_process_group("gloo", store=rank.store, rank=rank.rank, world_size=rank.world)
    yield
    dist.destroy_process_group()


def our_model(transport, case, seed):
    return fully_shard(fresh(case, seed), updates=CASES[case][1](), transport=transport)


# From ours


def save_ours(transport, case, path):
    model = our_model(transport, case, 0)
    train(model, model.optimizer, range(STEPS))
    save_checkpoint(path, model, {})
    losses = train(model, model.optimizer, range(STEPS, 2 * STEPS))
    model.close()
    return losses


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """Per case, a checkpoint of ours and how training went on."""
    root = tmp_path_factory.mktemp("ours")
    folders = {case: root / case for case in CASES}
    losses = on_ranks(2, ours_alone, save_ours, folders)
    return {case: (folders[case], losses[case]) for case in CASES}


@each_case
def test_a_plain_program_goes_on_from_our_checkpoint(ours, case):
    path, losses = ours[case]
    model = fresh(case, 1)
    optimizer = CASES[case][2](list(model.parameters()))
    other_hyperparameters(optimizer)
    state = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }
    quiet(dcp.load, state, checkpoint_id=path)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    assert train(model, optimizer, range(STEPS, 2 * STEPS)) == close(losses)


@each_case
def test_one_file_made_by_torch_loads_into_a_plain_program(ours, case, tmp_path):
    path, losses = ours[case]
    quiet(dcp_to_torch_save, path, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    model = fresh(case, 1)
    optimizer = CASES[case][2](list(model.parameters()))
    other_hyperparameters(optimizer)
    model.load_state_dict(whole["model"])
    set_optimizer_state_dict(model, optimizer, whole["optimizer"])
    assert train(model, optimizer, range(STEPS, 2 * STEPS)) == close(losses)


def load_into_fsdp2(_transport, case, path):
    model = fsdp2_model(case, 1)
    optimizer = CASES[case][2](list(model.parameters()))
    other_hyperparameters(optimizer)
    state = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }
    quiet(dcp.load, state, checkpoint_id=path)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    return train(model, optimizer, range(STEPS, 2 * STEPS))


def fsdp2_model(case, seed):
    model = fresh(case, seed)
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fsdp2(layer, mesh=mesh)
    return fsdp2(model, mesh=mesh)


@pytest.fixture(scope="module")
def fsdp2_losses(ours):
    folders = {case: path for case, (path, _) in ours.items()}
    return quiet(on_ranks, 3, process_group, load_into_fsdp2, folders)


@each_case
def test_fsdp2_goes_on_from_our_checkpoint(ours, fsdp2_losses, case):
    assert fsdp2_losses[case] == close(ours[case][1])


# To ours


def save_plain(case, path, **options):
    model = fresh(case, 2)
    optimizer = CASES[case][2](list(model.parameters()))
    train(model, optimizer, range(STEPS))
    optimizer.param_groups[0]["lr"] *= 0.5
    optimizer.param_groups[-1]["lr"] = optimizer.param_groups[0]["lr"]
    chosen = StateDictOptions(**options)
    state = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=chosen),
    }
    quiet(dcp.save, copy.deepcopy(state), checkpoint_id=path)
    return train(model, optimizer, range(STEPS, 2 * STEPS))


def load_into_ours(transport, case, paths):
    """Losses after loading each of the folders."""
    losses = []
    for path in paths:
        model = our_model(transport, case, 3)
        load_torch_checkpoint(path, model)
        losses.append(train(model, model.optimizer, range(STEPS, 2 * STEPS)))
        model.close()
    return losses


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """By case and writer, how it went on itself and how ours did."""
    root = tmp_path_factory.mktemp("theirs")
    saved = {case: {} for case in CASES}
    for case, losses in saved.items():
        for name, flat in (("nested", False), ("flat", True)):
            folder = root / case / name
            losses[name] = save_plain(case, folder, flatten_optimizer_state_dict=flat)
    folders = {case: root / case / "fsdp2" for case in CASES}
    for case, losses in quiet(on_ranks, 3, process_group, save_fsdp2, folders).items():
        saved[case]["fsdp2"] = losses
    folders = {case: [root / case / name for name in saved[case]] for case in CASES}
    loaded = on_ranks(2, ours_alone, load_into_ours, folders)
    return {
        case: dict(zip(saved[case], zip(saved[case].values(), losses, strict=True), strict=True))
        for case, losses in loaded.items()
    }


@each_case
@pytest.mark.parametrize("kind", ["nested", "flat"])
def test_ours_goes_on_from_a_plain_checkpoint(theirs, case, kind):
    expected, losses = theirs[case][kind]
    assert losses == close(expected)


def save_fsdp2(_transport, case, path):
    model = fsdp2_model(case, 2)
    optimizer = CASES[case][2](list(model.parameters()))
    train(model, optimizer, range(STEPS))
    state = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }
    dcp.save(state, checkpoint_id=path)
    return train(model, optimizer, range(STEPS, 2 * STEPS))


@each_case
def test_ours_goes_on_from_an_fsdp2_checkpoint(theirs, case):
    expected, losses = theirs[case]["fsdp2"]
    assert losses == close(expected)


def load_alone(world_model, path, **options):
    def scene(rank):
        with sharded(rank, world_model, updates=CASES["adamw"][1]()) as model:
            before = {n: v.clone() for n, v in model.full_state_dict().items()}
            try:
                load_torch_checkpoint(path, model, **options)
            except CheckpointError as error:
                after = model.full_state_dict()
                assert all(torch.equal(after[name], before[name]) for name in before)
                return type(error), str(error)
            return {n: v.tolist() for n, v in model.full_state_dict().items()}

    return run_ranks(scene, 2)


def test_weights_alone_are_taken_from_wherever_they_were_put(tmp_path):
    model = fresh("adamw", 4)
    quiet(dcp.save, {"app": {"net": model.state_dict()}}, checkpoint_id=tmp_path / "a")
    quiet(dcp.save, model.state_dict(), checkpoint_id=tmp_path / "b")
    expected = {name: value.tolist() for name, value in model.state_dict().items()}
    for folder, key in (("a", "app.net"), ("b", "")):
        options = {"model_key": key, "optimizer_key": None}
        assert load_alone(fresh("adamw", 5), tmp_path / folder, **options) == [expected] * 2


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ("sgd", r"there is no tensor 'optimizer.state.layers.0.weight.exp_avg'"),
        ("muon", r"there is no tensor 'model.embedding.weight'"),
        (None, r"expected a folder of torch.distributed.checkpoint, got .*has no .metadata"),
    ],
)
def test_another_optimizer_or_model_changes_nothing_and_is_named(tmp_path, saved, message):
    if saved is not None:
        save_plain(saved, tmp_path / "plain")
    answers = load_alone(fresh("adamw", 5), tmp_path / "plain")
    assert answers[0] == answers[1]
    kind, text = answers[0]
    assert kind is (CheckpointError if saved is None else CheckpointMismatchError)
    with pytest.raises(kind, match=message):
        raise kind(text)
