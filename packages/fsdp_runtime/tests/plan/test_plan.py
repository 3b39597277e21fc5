"""A plan is data: no device, no ranks, equal on all of them, and every part of it is signed."""

from itertools import accumulate
from operator import mul

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.models import TiedModel
from torch import nn

from sshsdp_fsdp_runtime import Cast, ModelSpec, Options, PlanError, Sharding, Update, build_plan
from sshsdp_fsdp_runtime.plan import storage
from sshsdp_fsdp_runtime.plan.group import assign_slots, home_of
from sshsdp_shardchain import Degrees, Level
from sshsdp_updates import SGD, AdamW
from sshsdp_zerosm import Topology

SPEC = ModelSpec.of(TiedModel())


def test_blocks_are_groups_and_what_is_shared_belongs_to_the_root():
    plan = build_plan(SPEC, 2)
    assert [group.label for group in plan.groups] == ["layers.0", "layers.1", "layers.2", "root"]
    root = [p.name for atom in plan.groups[-1].atoms for p in atom.parameters]
    assert root == ["gain", "embedding.weight"]
    assert [g.label for g in plan.reduction_order] == ["layers.2", "layers.1", "layers.0", "root"]


def test_elements_of_a_model_that_is_a_list_are_groups_and_those_of_lists_inside_are_not():
    inner = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    spec = ModelSpec.of(nn.ModuleList([nn.Linear(2, 2), nn.ModuleDict({"blocks": inner})]))
    plan = build_plan(spec, 2)
    assert [group.label for group in plan.groups if group.atoms] == ["0", "1"]


def test_lists_that_are_empty_or_hold_what_others_hold_give_no_groups():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.adapters = nn.ModuleList()
            self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
            self.last = nn.ModuleList([self.layers[-1]])

    plan = build_plan(ModelSpec.of(Model()), 2)
    assert [group.label for group in plan.groups] == ["layers.0", "layers.1", "root"]
    assert build_plan(ModelSpec.of(nn.Sequential(nn.Linear(2, 2), nn.ModuleList())), 2).groups
    with pytest.raises(PlanError, match=r"'adapters\.\*' that matches none"):
        build_plan(ModelSpec.of(Model()), 2, groups=["adapters.*"])


def test_a_parameter_tied_across_groups_belongs_to_the_root():
    model = TiedModel()
    model.layers[1].down.weight = model.layers[0].down.weight
    spec = ModelSpec.of(model)
    tied = next(p for p in spec.parameters if len(p.aliases) > 1 and "down" in p.name)
    assert tied.aliases == ("layers.0.down.weight", "layers.1.down.weight")
    assert home_of(tied, ["layers.0", "layers.1"]) == ""
    assert home_of(tied, ["layers"]) == "layers"


def test_siblings_take_turns_and_holders_of_other_groups_do_not():
    modules = ["a", "a.x", "a.y", "b", "c"]
    assert assign_slots(modules, 2) == {"a.x": 0, "a.y": 1, "b": 0, "c": 1, "a": 2, "": 3}
    assert assign_slots([], 2) == {"": 0}


def test_atoms_agree_in_every_field():
    rules = [Update("**.weight", AdamW()), Update("**", SGD(lr=0.1))]
    plan = build_plan(SPEC, 2, updates=rules, formats=[Cast("layers.0.**", torch.bfloat16)])
    first, second = plan.groups[0].atoms, plan.groups[1].atoms
    assert {(a.weight_dtype, a.main_dtype, a.rule_index) for a in first} == {
        (torch.bfloat16, torch.float32, 0),
        (torch.bfloat16, torch.float32, 1),
        (torch.bfloat16, None, None),
    }
    assert all(atom.separate_main == atom.trainable for atom in first)
    assert not any(atom.separate_main for atom in second)


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("options", {"options": Options(slots=3)}),
        ("rules", {"updates": [Update("**", AdamW(lr=0.5))]}),
        ("rules", {"formats": [Cast("**", torch.bfloat16)]}),
        ("rules", {"sharding": [Sharding("**", Degrees(1, 1, 1))]}),
        ("layout", {"groups": ["layers.0"]}),
    ],
)
def test_the_signature_names_the_part_that_differs(part, changed):
    ours, theirs = build_plan(SPEC, 2), build_plan(SPEC, 2, **changed)
    assert ours.signature() == build_plan(SPEC, 2).signature()
    assert ours.signature() != theirs.signature()
    differing = {key for key, value in ours.sections().items() if theirs.sections()[key] != value}
    assert part in differing
    assert "model" not in differing
    assert "versions" not in differing


def test_the_signature_covers_names_shapes_and_frozen_parameters():
    other = TiedModel()
    other.gain.requires_grad_(False)
    assert (
        build_plan(ModelSpec.of(other), 2).sections()["model"]
        != build_plan(SPEC, 2).sections()["model"]
    )


def test_the_description_says_who_claimed_what():
    text = build_plan(SPEC, 2).describe()
    assert "group layers.0 (slot 0)" in text
    assert "embedding.weight  = head.weight (13, 5)" in text
    assert "AdamW(lr=0.001" in text
    assert "frozen" in text


def test_planning_needs_no_memory_and_no_ranks():
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(65536, 65536) for _ in range(64)))  # a terabyte
    plan = build_plan(ModelSpec.of(model), 4096, groups=["*"])
    assert plan.forecast().host_bytes() > 4 * 2**40


@settings(deadline=None, max_examples=60)
@given(
    nested=st.tuples(*[st.integers(1, 3)] * 4),
    shapes=st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=1, max_size=6),
)
def test_every_element_has_one_owner_per_replica(nested, shapes):
    zero3, zero2, zero1, world = accumulate(nested, mul)
    model = nn.Module()
    for index, shape in enumerate(shapes):
        model.register_parameter(f"p{index}", nn.Parameter(torch.zeros(shape)))
    plan = build_plan(
        ModelSpec.of(model), world, sharding=[Sharding("**", Degrees(zero3, zero2, zero1))]
    )
    for atom in plan.atoms:
        for parameter in atom.parameters:
            for replica in range(atom.replicas):
                owners = atom.layout.chain.owners(Level.ZERO1, replica)
                pieces = [
                    atom.layout.fragment(parameter.name, Level.ZERO1, rank) for rank in owners
                ]
                held = [i for piece in pieces for i in range(piece.start, piece.stop)]
                assert sorted(held) == list(range(parameter.numel))


def test_the_ranks_of_one_node_are_not_asked_for_partial_sums_which_only_nodes_have(monkeypatch):
    def asked(**_arguments):
        raise AssertionError

    monkeypatch.setattr(storage, "reduce_scatter_workspace", asked)
    monkeypatch.setattr(storage, "all_reduce_workspace", asked)
    spec = ModelSpec.of(TiedModel())
    assert build_plan(spec, Topology(1, 4)).storage.arenas
    with pytest.raises(AssertionError):
        build_plan(spec, Topology(2, 2))
