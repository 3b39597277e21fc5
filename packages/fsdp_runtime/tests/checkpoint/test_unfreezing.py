"""Adapters train beside a frozen base, which costs no state; later parts of it train as well."""

from pathlib import Path

import pytest
import torch
from packages.fsdp_runtime.tests.runtime.test_deferred_init import peak_of
from testing.ranks import run_ranks
from torch import nn

from sshsdp_fsdp_runtime import (
    Cast,
    ExponentialAverage,
    Sharding,
    Update,
    deferred_init,
    fully_shard,
)
from sshsdp_fsdp_runtime.checkpoint import (
    CheckpointMismatchError,
    load_checkpoint,
    save_checkpoint,
)
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD, AdamW
from sshsdp_zerosm import connect

STEPS = 3  # per phase
SHARED, POISONED = {"form": "shared"}, {"form": "private", "poison": True}
PART = ("layers.1.base.**", "scale")  # of the base


class Layer(nn.Module):
    """A base of odd sizes with adapters of rank 2."""

    def __init__(self, width):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.lora_down = nn.Linear(width, 2, bias=False)
        self.lora_up = nn.Linear(2, width, bias=False)

    def forward(self, x):
        return x + torch.tanh(self.base(x) + self.lora_up(self.lora_down(x)))


class Adapted(nn.Module):
    def __init__(self, width=7):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(3))
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.head = nn.Linear(width, 11, bias=False)
        self.shadow = nn.Linear(width, 11, bias=False)
        self.shadow.weight = self.head.weight

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x * self.scale)


def is_adapter(name):
    return "lora" in name


def is_part(name):
    return name.startswith("layers.1.base") or name == "scale"


def frozen_but(trained, model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained(name))
    return model


def trained_in(phase):
    return (lambda name: is_adapter(name) or is_part(name)) if phase == 1 else is_adapter


def train(model, optimizer, phase, ranks, world):
    for step in range(STEPS):
        for rank in ranks:
            generator = torch.Generator().manual_seed(100 * phase + 10 * step + rank)
            x = torch.randn(4, 7, generator=generator, dtype=torch.float64)
            (model(x).square().mean() / (world if len(ranks) == world else 1)).backward()
        if (phase, step) == (0, 1):
            optimizer.param_groups[0]["lr"] = 7e-3  # as a scheduler does
        optimizer.step()
        optimizer.zero_grad()


def rules(phase, own_rule):
    base = Update("**", AdamW(lr=2e-3, weight_decay=0.3))
    adapters = AdamW(lr=1e-2, weight_decay=0.1)
    if phase == 1 and own_rule:
        return [Update("layers.*.lora_*.*", adapters), base]
    return [Update("**", adapters)]


def phases(rank, folder, degrees, options, own_rule):
    states = []
    with connect(rank.rank, rank.world, rank.store, timeout=30) as transport:
        for phase in range(3):
            torch.manual_seed(phase)
            with deferred_init():
                model = frozen_but(trained_in(phase), Adapted().double())
            model = fully_shard(
                model,
                sharding=[Sharding("**", Degrees(*degrees))],
                updates=rules(phase, own_rule),
                transport=transport,
                **options,
            )
            if phase:
                extra = load_checkpoint(folder / str(phase - 1), model, fresh=PART)
                assert extra["step"] == phase * STEPS
            train(model, model.optimizer, phase, [rank.rank], rank.world)
            states.append(model.full_state_dict())
            save_checkpoint(folder / str(phase), model, {"step": (phase + 1) * STEPS})
            with_state = set(model.optimizer.state_dict()["state"])
            assert with_state == {n for n, p in model.named_parameters() if p.requires_grad}
            model.close()
    return states


@pytest.mark.parametrize(
    ("world", "degrees", "options", "own_rule"),
    [
        (1, (1, 1, 1), POISONED, True),
        (2, (2, 2, 2), SHARED, False),
        pytest.param(2, (1, 1, 2), POISONED, True, marks=pytest.mark.full),
        (3, (3, 3, 3), POISONED | {"slots": 1}, True),
        pytest.param(3, (1, 3, 3), SHARED, False, marks=pytest.mark.full),
    ],
)
def test_state_of_the_adapters_stays_where_a_part_of_the_base_is_unfrozen_and_frozen_again(
    tmp_path, world, degrees, options, own_rule
):
    torch.manual_seed(0)
    plain = frozen_but(is_adapter, Adapted().double())
    named = dict(plain.named_parameters())
    optimizer = torch.optim.AdamW(
        [p for p in named.values() if p.requires_grad], lr=1e-2, weight_decay=0.1
    )
    expected = []
    for phase in range(3):
        frozen_but(trained_in(phase), plain)
        if phase == 1:
            group = {"params": [p for name, p in named.items() if is_part(name)]}
            own = {"lr": 2e-3, "weight_decay": 0.3} if own_rule else {"lr": 7e-3}
            optimizer.add_param_group(group | own)
        train(plain, optimizer, phase, range(world), world)
        expected.append({name: value.clone() for name, value in plain.state_dict().items()})
    for states in run_ranks(phases, world, tmp_path, degrees, options, own_rule, timeout=90):
        for state, values in zip(states, expected, strict=True):
            assert state.keys() == values.keys()
            for name, value in values.items():
                difference = (state[name] - value).norm() / value.norm()
                assert difference <= 1e-10, name


def saved(folder, trained, *, updates=None, model=None, **options):
    """A checkpoint of a model that has trained a step."""
    torch.manual_seed(0)
    model = fully_shard(frozen_but(trained, model or Adapted()), updates=updates, **options)
    model(torch.ones(2, 7)).square().sum().backward()
    model.optimizer.step()
    save_checkpoint(folder, model, {})
    return model


def everything(_name):
    return True


@pytest.mark.parametrize("model", ["built so", "cast"])
def test_a_base_in_bfloat16_has_wide_main_weights_from_its_own_values_on(tmp_path, model):
    torch.manual_seed(0)
    mixed, options = Adapted(), {}
    if model == "cast":
        options = {"formats": [Cast("layers.*.base.*", torch.bfloat16)]}
    else:
        for layer in mixed.layers:
            layer.base.bfloat16()
    shapes = {name: p.shape for name, p in mixed.named_parameters() if ".base." in name}

    def inputs(layer, args):
        return (args[0].bfloat16(),)

    for layer in mixed.layers:
        layer.base.register_forward_pre_hook(inputs)
    first = saved(tmp_path / "frozen", is_adapter, model=mixed, **options)
    before = first.full_state_dict()
    with deferred_init():
        again = Adapted()
        if model != "cast":
            for layer in again.layers:
                layer.base.bfloat16()
    second = fully_shard(again, **options)
    load_checkpoint(tmp_path / "frozen", second, fresh=["**.base.*", "scale", "head.*"])
    for name, value in second.full_state_dict().items():
        if name in shapes:
            assert (before[name].dtype, value.dtype) == (torch.bfloat16, torch.float32)
        assert torch.equal(value, before[name].to(value.dtype))
    # And back: a frozen weight is what the main weight is rounded to.
    with second.unsharded("**.base.*") as full:
        for value in full.values():
            value.add_(1e-4)
    save_checkpoint(tmp_path / "trained", second, {})
    load_checkpoint(tmp_path / "trained", first, fresh=["**.base.*", "scale", "head.*"])
    wide, narrow = second.full_state_dict(), first.full_state_dict()
    for name in shapes:
        assert torch.equal(narrow[name], wide[name].bfloat16())


@pytest.mark.parametrize(("before", "after"), [(is_adapter, everything), (everything, is_adapter)])
def test_state_that_is_missing_or_left_over_is_an_error_that_names_fresh(tmp_path, before, after):
    saved(tmp_path / "saved", before)
    model = fully_shard(frozen_but(after, Adapted()))
    values = model.full_state_dict()
    with pytest.raises(CheckpointMismatchError, match=r"base\.weight\.exp_avg.*name in `fresh`"):
        load_checkpoint(tmp_path / "saved", model)
    with pytest.raises(CheckpointMismatchError, match=r"scale\.exp_avg.*name in `fresh`"):
        load_checkpoint(tmp_path / "saved", model, fresh=["layers.**", "head.*"])
    with pytest.raises(CheckpointMismatchError, match=r"`fresh` to match .* got 'bas\.\*\*'"):
        load_checkpoint(tmp_path / "saved", model, fresh=["**.base.*", "bas.**"])
    assert all(torch.equal(v, values[n]) for n, v in model.full_state_dict().items())
    load_checkpoint(tmp_path / "saved", model, fresh=["**.base.*", "scale", "shadow.*"])  # tied


def test_a_rule_without_state_still_counts_steps(tmp_path):
    saved(tmp_path / "saved", is_adapter, updates=[Update("**", SGD(lr=0.5))])
    model = fully_shard(Adapted(), updates=[Update("**", SGD(lr=0.1))])
    with pytest.raises(CheckpointMismatchError, match=r"none of 'scale'.*name it in `fresh`"):
        load_checkpoint(tmp_path / "saved", model, fresh=["**.base.*", "head.*"])
    load_checkpoint(tmp_path / "saved", model, fresh=["**.base.*", "head.*", "scale"])
    steps = model.checkpoint_scalars()["step"]
    assert steps == {name: float(is_adapter(name)) for name in steps}
    assert model.optimizer.param_groups[0]["lr"] == 0.5


def test_an_average_goes_on_and_takes_in_what_is_unfrozen(tmp_path):
    mixed = Adapted()
    mixed.layers[0].base.bfloat16()
    mixed.layers[0].base.register_forward_pre_hook(lambda _, args: (args[0].bfloat16(),))
    first = saved(tmp_path / "model", is_adapter, model=mixed)
    average = ExponentialAverage(first, 0.5)
    average.update()
    save_checkpoint(tmp_path / "average", average, {})
    again = Adapted()
    again.layers[0].base.bfloat16()
    other = ExponentialAverage(fully_shard(again), 0.25)
    load_checkpoint(tmp_path / "average", other, fresh=["**.base.*", "scale", "head.*"])
    assert (other.updates, other.decay) == (1, 0.5)
    with average.applied():
        expected = first.full_state_dict()
    with other.applied():
        for name, value in again.full_state_dict().items():
            assert torch.equal(value, expected[name].to(value.dtype)), name


def test_other_shapes_are_another_model_also_where_state_is_fresh(tmp_path):
    saved(tmp_path / "saved", is_adapter)
    other = Adapted()
    other.layers[0].base = nn.Linear(7, 9)
    with pytest.raises(CheckpointMismatchError, match=r"base\.weight: expected \[9, 7\], got"):
        load_checkpoint(tmp_path / "saved", fully_shard(other), fresh=["**"])


def test_parameters_that_share_a_rule_must_have_been_trained_alike(tmp_path):
    rates = [Update("layers.0.**", AdamW(lr=1e-2)), Update("**", AdamW(lr=1e-3))]
    saved(tmp_path / "saved", is_adapter, updates=rates)
    model = fully_shard(Adapted())
    values = model.full_state_dict()
    with pytest.raises(CheckpointMismatchError, match=r"lora_down.*give them rules of their own"):
        load_checkpoint(tmp_path / "saved", model, fresh=["**.base.*", "head.*", "scale"])
    assert all(torch.equal(v, values[n]) for n, v in model.full_state_dict().items())


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="expected Linux")
def test_unfreezing_takes_the_new_shards_and_one_tensor(tmp_path):
    def wide(width):
        layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(24))
        return frozen_but(lambda name: name.startswith("0."), layers)

    def save(_rank):
        for width in (2, 1024):
            save_checkpoint(tmp_path / str(width), fully_shard(wide(width)), {})

    def unfreeze(_rank):
        def load(width):
            with deferred_init():
                model = wide(width).requires_grad_(True)
            load_checkpoint(tmp_path / str(width), fully_shard(model), fresh=["**"])

        load(2)  # imports what it needs
        return peak_of(lambda: load(1024))

    run_ranks(save, 1)
    [peak] = run_ranks(unfreeze, 1)
    # Weights and two moments, 96 MiB each; tensors are of 4 MiB. A second copy of one would show.
    assert peak < 3 * 96 + 64
