"""Stages over units, sums and rows give the same bits in every world and for every cut."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sshsdp_shardchain import Degrees
from sshsdp_updates import (
    SGD,
    AdamW,
    Lion,
    Muon,
    NorMuon,
    columns,
    experts,
    heads,
    pieces,
    whole,
)

DEGREES = [
    Degrees(1, 1, 1),
    Degrees(1, 1, 2),
    Degrees(2, 2, 4),
    Degrees(1, 3, 3),
    Degrees(1, 2, 6),
    Degrees(5, 5, 5),
    Degrees(7, 7, 7),
    Degrees(2, 4, 8),
]


@st.composite
def tensors_with_units(draw):
    rows, cols, batch = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["whole", "heads", "pieces", "columns", "experts", "conv", "none"]))
    if kind == "heads":
        return (rows * batch, cols), heads(rows)
    if kind == "pieces":
        return (rows + cols, batch), pieces((rows, cols))
    if kind == "columns":
        return (batch, rows * cols), columns(cols)
    if kind == "experts":
        return (batch, rows, cols), draw(st.sampled_from([experts(), columns(cols)]))
    if kind == "conv":
        return (rows, cols, 1, batch), whole()
    return ((rows, cols) if kind == "whole" else (0, cols)), whole()


@st.composite
def cases(draw):
    lists = draw(
        st.lists(st.lists(tensors_with_units(), min_size=1, max_size=3), min_size=1, max_size=3)
    )
    named = [{f"t{i}.{j}": case for j, case in enumerate(item)} for i, item in enumerate(lists)]
    degrees = draw(st.sampled_from(DEGREES))
    world = degrees.zero1 * draw(st.integers(1, max(1, 8 // degrees.zero1)))
    return named, degrees, world


def trained(cluster, rule, named, degrees, world, *, dtype, seed, steps=2, absent=0.25, **options):
    """Weights and states after some steps, by name and field, put together from all ranks."""
    random = torch.Generator().manual_seed(seed)
    tensors = [
        {
            name: torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)
            for name, (shape, _) in item.items()
        }
        for item in named
    ]
    units = {name: unit for item in named for name, (_, unit) in item.items()}
    ours = cluster(
        [(rule, item) for item in tensors], world=world, degrees=degrees, units=units, **options
    )
    numels = {name: t.numel() for item in tensors for name, t in item.items()}
    for _ in range(steps):
        gradients = {}
        for item in named:
            for name, (shape, _) in item.items():
                gradient = torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)
                present = torch.rand((), generator=random) >= absent
                gradients[name] = gradient if present else None
        ours.set_gradients(gradients, numels)
        ours.run(lambda optimizer: optimizer.step())
    assert ours.padding_is_untouched()
    result = {("main_weight", name): ours.weight(name, numel) for name, numel in numels.items()}
    for optimizer in ours.optimizers:
        for item in optimizer.fields():
            size = torch.Size(item.shape).numel()
            full = result.setdefault(
                (item.field, item.name), torch.full((size,), torch.nan, dtype=item.tensor.dtype)
            )
            there = full[item.fragment.start : item.fragment.stop]
            assert there.isnan().all() or torch.equal(there, item.tensor)
            there.copy_(item.tensor)
    return result


def assert_same(first, second):
    assert first.keys() == second.keys()
    for key, tensor in first.items():
        assert torch.equal(tensor, second[key]), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "rule",
    [
        Muon(0.1, ns_dtype=torch.float32),
        Muon(0.1, nesterov=False, adjust_lr_fn="match_rms_adamw", ns_coefficients="cubic5"),
        NorMuon(0.1, ns_dtype=torch.float64),
    ],
    ids=["muon", "muon-bf16", "normuon"],
)
@given(case=cases(), seed=st.integers(0, 999), limit=st.sampled_from([1, 2000, 2**28]))
@settings(max_examples=25, deadline=None)
def test_bits_depend_neither_on_the_world_nor_on_cuts(cluster, rule, dtype, case, seed, limit):
    named, degrees, world = case
    alone = trained(cluster, rule, named, Degrees(1, 1, 1), 1, dtype=dtype, seed=seed)
    shared = trained(cluster, rule, named, degrees, world, dtype=dtype, seed=seed, limit=limit)
    assert_same(alone, shared)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rule", [AdamW(0.1), SGD(0.1, 0.9), Lion(0.1, weight_decay=0.1)])
@given(case=cases(), seed=st.integers(0, 999))
@settings(max_examples=25, deadline=None)
def test_bits_of_elementwise_rules_neither(cluster, rule, dtype, case, seed):
    named, degrees, world = case
    alone = trained(cluster, rule, named, Degrees(1, 1, 1), 1, dtype=dtype, seed=seed)
    shared = trained(cluster, rule, named, degrees, world, dtype=dtype, seed=seed)
    assert_same(alone, shared)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_rows_of_several_blocks_are_summed_in_one_way(cluster, world):
    named = [{"a": ((3, 9001), whole()), "b": ((2, 12288), columns(6144))}]
    rule = NorMuon(0.1, ns_dtype=torch.float32)
    options = {"dtype": torch.float32, "seed": 1, "absent": 0.0}
    alone = trained(cluster, rule, named, Degrees(1, 1, 1), 1, **options)
    degrees = Degrees(world, world, world)
    assert_same(alone, trained(cluster, rule, named, degrees, world, **options))
