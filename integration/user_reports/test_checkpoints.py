"""Saving and loading at other worlds than the one that saved, and what it costs."""

import torch
from integration.user_reports.comparison import unequal, values
from packages.fsdp_runtime.tests.checkpoint.test_full_state import extra_at_peak
from packages.fsdp_runtime.tests.runtime.scenes import on_ranks
from testing.models import TiedModel
from torch import nn

from sshsdp_fsdp_runtime import Cast
from sshsdp_fsdp_runtime.checkpoint import load_checkpoint, save_checkpoint


def everything(model):
    """All that the optimizer knows, and the weights: one tensor or number per name."""
    state = {entry.key: entry for entry in model.checkpoint_tensors()}
    return {key: (entry.start, entry.tensor.clone()) for key, entry in state.items()}


def test_more_ranks_than_rows_go_on_where_two_stopped(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)

    def train(model, step):
        model(torch.arange(8.0).view(2, 4) + step).square().sum().backward()
        model.optimizer.step()
        model.optimizer.zero_grad()

    def save(_rank, model):
        for step in range(3):
            train(model, step)
        save_checkpoint(tmp_path / "saved", model, {})
        saved = everything(model), model.checkpoint_scalars()
        train(model, 3)
        return *saved, values(model)

    def load(_rank, model):
        load_checkpoint(tmp_path / "saved", model)
        loaded = everything(model), model.checkpoint_scalars()
        train(model, 3)
        return *loaded, values(model)

    saved = on_ranks(2, save, model=model)
    assert saved[0][1]["step"] == {"weight": 3, "bias": 3}
    for world in (4, 8):
        loaded = on_ranks(world, load, model=model)
        assert whole(part for part, *_ in saved) == whole(part for part, *_ in loaded)
        assert all(scalars == saved[0][1] for _, scalars, _ in loaded)
        assert all(unequal(saved[0][2], after) == [] for *_, after in loaded)
        sizes = [tensor.numel() for part, *_ in loaded for _, tensor in part.values()]
        assert 0 in sizes  # there are ranks that hold nothing


def whole(ranks):
    """Elements by tensor and place, from the pieces of all ranks."""
    elements: dict = {}
    for pieces in ranks:
        for key, (start, tensor) in pieces.items():
            for place, value in enumerate(tensor.flatten().tolist(), start):
                elements[key, place] = value
    return elements


def test_loading_a_full_state_dict_takes_memory_for_one_parameter_at_a_time():
    layers = [nn.Linear(512, 512, bias=False) for _ in range(16)]
    model = nn.Sequential(*layers)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    one = 512 * 512 * 4  # bytes

    def scene(rank, ours):
        source = state if rank.rank == 0 else None
        return extra_at_peak(lambda: ours.load_full_state_dict(source))

    for extra in on_ranks(2, scene, model=model):
        assert extra < 1.5 * one  # the model has 16


def test_tiny_second_moments_survive_a_checkpoint(tmp_path):
    def moments(model):
        entries = model.checkpoint_tensors()
        return [entry.tensor for entry in entries if entry.key.endswith(".exp_avg_sq")]

    def save(_rank, model):
        for moment in moments(model):
            moment.fill_(1e-12)
        save_checkpoint(tmp_path / "saved", model, {})

    def load(_rank, model):
        load_checkpoint(tmp_path / "saved", model)
        whole = torch.cat(moments(model))
        return whole.numel() > 0 and bool((whole == torch.tensor(1e-12)).all())

    options = {"model": TiedModel(), "formats": [Cast("**", torch.bfloat16)]}
    on_ranks(1, save, **options)
    assert on_ranks(1, load, **options) == [True]
