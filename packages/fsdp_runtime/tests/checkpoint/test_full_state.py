"""Whole values leave and enter a sharded model with memory for little more than one of them."""

import mmap

import pytest
import torch
from packages.fsdp_runtime.tests.checkpoint.scenes import on_ranks
from packages.fsdp_runtime.tests.runtime.scenes import ids
from testing.models import TiedModel
from torch import nn

from sshsdp_fsdp_runtime import Cast, Sharding
from sshsdp_shardchain import Degrees
from sshsdp_zerosm import Topology

BIG = 1 << 20  # bytes of a layer of `layers`
FEW = 8 * BIG  # a layer, messages, and what malloc keeps of them; the model has 32 layers
TOPOLOGIES = [None, Topology(2, 1)]


def layers(count=32, width=512):
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))


def expected_values(model):
    return {name: value.tolist() for name, value in model.state_dict().items()}


def rss(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


def forget_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def extra_at_peak(action):
    """Bytes that this process had at most beyond what it has before."""
    action()  # what is allocated once, and pages that are touched for the first time
    forget_peak()
    before = rss("VmRSS:")
    action()
    return rss("VmHWM:") - before


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=["node", "nodes"])
def test_rank_0_alone_gets_the_values_under_every_name(topology):
    torch.manual_seed(0)
    model = TiedModel()

    def scene(_rank, ours):
        values = ours.full_state_dict(rank0_only=True)
        tied = values and values["head.weight"] is values["embedding.weight"]
        return {name: value.tolist() for name, value in values.items()}, bool(tied)

    results = on_ranks(2, scene, model=model, topology=topology)
    assert results == [(expected_values(model), True), ({}, False)]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=["node", "nodes"])
@pytest.mark.parametrize("degrees", [(1, 1, 1), (2, 2, 2), (1, 1, 2)])
def test_values_of_rank_0_reach_every_rank_and_are_in_use(topology, degrees):
    torch.manual_seed(1)
    source = TiedModel(vocabulary=101, width=67)
    source.shift.mul_(3)

    def scene(rank, model):
        model.load_full_state_dict(source.state_dict() if rank.rank == 0 else None)
        with torch.no_grad():
            wanted = source(ids())
            same = bool((model(ids()) - wanted).norm() < 2e-2 * wanted.norm())
        return same, {name: value.tolist() for name, value in model.full_state_dict().items()}

    results = on_ranks(
        2,
        scene,
        model=TiedModel(vocabulary=101, width=67),
        topology=topology,
        sharding=[Sharding("**", Degrees(*degrees))],
        formats=[Cast("**", torch.bfloat16)],
    )
    assert results == [(True, expected_values(source))] * 2


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=["node", "nodes"])
def test_values_come_one_at_a_time(topology):
    def scene(_rank, model):
        def run():
            for _, value in model.iter_full_state_dict():
                assert value.numel() == 512 * 512

        return extra_at_peak(run)

    for extra in on_ranks(2, scene, model=layers(), topology=topology):
        assert extra < FEW


class Lazy(dict):
    """Makes a value when it is asked for."""

    def __init__(self, model):
        super().__init__({name: value.shape for name, value in model.state_dict().items()})

    def __getitem__(self, name):
        return torch.ones(super().__getitem__(name))


def test_loading_from_rank_0_takes_no_memory_for_the_model_on_any_rank():
    model = layers()

    def scene(rank, ours):
        source = Lazy(model) if rank.rank == 0 else None
        extra = extra_at_peak(lambda: ours.load_full_state_dict(source))
        ones = all(bool((value == 1).all()) for value in ours.full_state_dict().values())
        return extra, ones

    for extra, ones in on_ranks(2, scene, model=model):
        assert ones
        assert extra < FEW


def test_the_measurement_sees_a_copy_of_the_model():
    """Anonymous pages of the size of the model are noticed."""

    def copy():
        with mmap.mmap(-1, 32 * BIG) as memory:
            memory.write(b"1" * len(memory))

    assert extra_at_peak(copy) > 31 * BIG


def wrong_values(rank, model, values):
    before = {name: value.clone() for name, value in model.full_state_dict().items()}
    with pytest.raises(ValueError, match="full state dict of this model") as error:
        model.load_full_state_dict(values if rank.rank == 0 else None)
    after = model.full_state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    return str(error.value)


def test_other_names_or_shapes_change_nothing_and_every_rank_says_so():
    values = TiedModel().state_dict()
    values["gain"] = torch.ones(3)
    del values["shift"]
    texts = on_ranks(2, wrong_values, values, model=TiedModel())
    assert texts[0] == texts[1]
    assert "missing 'shift'" in texts[0]
    assert "'gain' of shape (3,) instead of (2,)" in texts[0]


class Torn(dict):
    """A value that can't be read after it was looked at once."""

    def __init__(self, values):
        super().__init__(values)
        self.looked = 0

    def __getitem__(self, name):
        self.looked += name == "gain"
        if name == "gain" and self.looked > 1:
            raise OSError("the file is gone")
        return super().__getitem__(name)


def test_a_value_that_rank_0_cannot_read_is_an_error_on_every_rank():
    def scene(rank, model):
        source = Torn(TiedModel().state_dict()) if rank.rank == 0 else None
        with pytest.raises(RuntimeError, match="'gain' from rank 0: OSError: the file is gone"):
            model.load_full_state_dict(source)
        with pytest.raises(RuntimeError):
            model(ids())
        model.load_full_state_dict(TiedModel().state_dict() if rank.rank == 0 else None)
        model(ids())

    on_ranks(2, scene, model=TiedModel())


def missing_on_rank_0(rank, model, giver):
    values = dict(TiedModel().state_dict()) if rank.rank == giver else None
    with pytest.raises(ValueError, match="expected a full state dict on rank 0") as error:
        model.load_full_state_dict(values)
    return str(error.value)


def test_values_that_rank_0_does_not_give_are_missed_by_name_on_every_rank():
    def scene(rank, model):
        return missing_on_rank_0(rank, model, 1), missing_on_rank_0(rank, model, None)

    (other, nobody), same = on_ranks(2, scene, model=TiedModel())
    assert same == (other, nobody)
    assert "got None there and one on rank 1; let rank 0 read it, and give None" in other
    assert "got None on every rank" in nobody
