"""Packs in the plan: tight and aligned at their start whatever the rule; what is refused."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sshsdp_fsdp_runtime import (
    Cast,
    ModelSpec,
    Pack,
    PlanError,
    Sharding,
    Update,
    build_plan,
    is_matrix,
)
from sshsdp_fsdp_runtime.plan.alike import group_kinds
from sshsdp_shardchain import Degrees, Level
from sshsdp_updates import SGD, AdamW, Muon, heads, whole

QKV = Pack("layers.*.attention", ["query", "key", "value"])
MLP = Pack("layers.*", ["gate", "up"])


class Attention(nn.Module):
    def __init__(self, width, sizes, bias):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.value = nn.Linear(width, sizes[2], bias=bias)  # another order than that of the pack
        self.query = nn.Linear(width, sizes[0], bias=bias)
        self.norm = nn.LayerNorm(5)
        self.key = nn.Linear(width, sizes[1], bias=bias)


class Block(nn.Module):
    def __init__(self, width=6, sizes=(8, 4, 4), bias=True):
        super().__init__()
        self.attention = Attention(width, sizes, bias)
        self.gate = nn.Linear(width, 7, bias=False)
        self.up = nn.Linear(width, 7, bias=False)


def model(depth=2, **options):
    with torch.device("meta"):
        result = nn.Module()
        result.layers = nn.ModuleList(Block(**options) for _ in range(depth))
    return result


def plan(changed=None, world=2, built=None, **rules):
    built = model() if built is None else built
    if changed is not None:
        changed(built)
    rules.setdefault("packs", [QKV, MLP])
    return build_plan(ModelSpec.of(built), world, **rules)


def refused(changed=None, **rules):
    with pytest.raises(PlanError) as caught:
        plan(changed, **rules)
    return str(caught.value)


def places(planned, names):
    [layout] = {
        id(atom): atom.layout
        for atom in planned.atoms
        if {p.name for p in atom.parameters} & set(names)
    }.values()
    return [layout.placement(name) for name in names]


def assert_tight(planned):
    for pack in planned.packs:
        for names in pack.operands:
            members = places(planned, names)
            assert members[0].offset * 4 % 64 == 0
            for before, after in pairwise(members):
                assert after.offset == before.offset + before.numel


SIZES = st.tuples(*[st.integers(1, 40)] * 3)
MUON = Muon(lr=0.02)


@given(
    width=st.integers(1, 40),
    sizes=SIZES,
    bias=st.booleans(),
    degrees=st.sampled_from([(1, 1, 1), (2, 2, 4), (4, 4, 4), (1, 2, 8)]),
    muon=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_members_lie_tight_from_an_aligned_start_on(width, sizes, bias, degrees, muon):
    updates = [Update("**", MUON, where=is_matrix)] if muon else []
    planned = plan(
        world=8,
        built=model(1, width=width, sizes=sizes, bias=bias),
        sharding=[Sharding("**", Degrees(*degrees))],
        updates=[*updates, Update("**", AdamW())],
    )
    assert [pack.rows for pack in planned.packs] == [(7, 7), sizes]
    assert_tight(planned)
    for atom in planned.atoms:  # nothing is lost, and all other members are aligned
        packed = {n for pack in planned.packs for operand in pack.operands for n in operand[1:]}
        assert sum(p.numel for p in atom.parameters) == atom.layout.numel - atom.layout.padding
        for placement in atom.layout.placements:
            assert placement.name in packed or placement.offset * 4 % 64 == 0
        held = [
            sum(f.numel for f in atom.layout.fragments(Level.ZERO1, rank))
            for rank in range(degrees[2])
        ]
        assert sum(held) == sum(p.numel for p in atom.parameters)


def test_a_pack_stays_in_the_model_s_order_where_its_first_member_was():
    [atom, *_] = plan(packs=[QKV]).atoms
    assert [p.name.removeprefix("layers.0.") for p in atom.parameters] == [
        "attention.scale",
        *(f"attention.{name}.weight" for name in ("query", "key", "value")),
        *(f"attention.{name}.bias" for name in ("query", "key", "value")),
        "attention.norm.weight",
        "attention.norm.bias",
        "gate.weight",
        "up.weight",
    ]


def test_weights_and_biases_may_have_rules_of_their_own_and_members_units_of_their_own():
    updates = [
        Update("**.query.weight", MUON, unit=heads(2)),
        Update("**.value.weight", MUON, unit=whole()),
        Update("**", MUON, where=is_matrix),
        Update("**", AdamW()),
    ]
    planned = plan(updates=updates)
    assert_tight(planned)
    units = {
        parameter.name: unit.name
        for atom in planned.atoms
        for parameter, unit in zip(atom.parameters, atom.units, strict=True)
    }
    assert units["layers.1.attention.query.weight"] != units["layers.1.attention.value.weight"]


def test_of_packs_with_a_common_member_the_first_wins():
    planned = plan(packs=[Pack("layers.0.attention", ["key", "value"]), QKV])
    assert [(p.module, len(p.members)) for p in planned.packs] == [
        ("layers.0.attention", 2),
        ("layers.1.attention", 3),
    ]


def test_the_plan_says_and_signs_what_is_packed():
    packed, apart = plan(), plan(packs=[])
    assert "  pack layers.1.attention: query + key + value as one [16, 6] and biases" in (
        packed.describe().splitlines()
    )
    assert "  pack layers.0: gate + up as one [14, 6]" in packed.describe().splitlines()
    changed = {k for k, v in packed.sections().items() if apart.sections()[k] != v}
    assert "layout" in changed
    assert packed.signature() == plan().signature()


def test_the_plan_says_which_bytes_a_pack_takes():
    planned = plan()
    lines = planned.describe().splitlines()
    at = lines.index("  pack layers.1.attention: query + key + value as one [16, 6] and biases")
    atom = planned.groups[1].atoms[0]
    starts = [
        4 * atom.layout.placement(f"layers.1.attention.query.{kind}").offset
        for kind in ("weight", "bias")
    ]
    assert lines[at + 1 : at + 3] == [
        f"    weights: 192 + 96 + 96 bytes from {starts[0]:,} on in the lists of {atom.name}",
        f"    biases: 32 + 16 + 16 bytes from {starts[1]:,} on in the lists of {atom.name}",
    ]


def test_tight_by_chance_is_not_packed():
    built = model(width=16)
    chance = plan(built=built, packs=[])
    packed = plan(built=built, packs=[MLP])
    assert places(chance, ["layers.0.gate.weight"]) == places(packed, ["layers.0.gate.weight"])
    assert chance.signature() != packed.signature()


def test_groups_are_alike_if_they_pack_the_same():
    assert [len(kind.groups) for kind in group_kinds(plan().groups)] == [2, 1]
    only_first = plan(built=model(width=16), packs=[Pack("layers.0", ["gate", "up"])])
    assert [len(kind.groups) for kind in group_kinds(only_first.groups)] == [1, 1, 1]


def test_frozen_layers_can_be_packed():
    planned = plan(lambda built: built.requires_grad_(False))
    assert_tight(planned)
    assert [pack.module for pack in planned.packs] == [
        *("layers.0", "layers.0.attention", "layers.1", "layers.1.attention")
    ]


def test_a_pack_that_matches_nothing_is_refused():
    assert refused(packs=[Pack("layers.*.attn", ["query", "key"])]) == (
        "expected every pack to match a module, got Pack('layers.*.attn', ['query', 'key']) that "
        "matches none; patterns of packs name the module around the members, and of packs with a "
        "member in common the first one wins"
    )
    assert "got Pack('layers.0', ['gate', 'up']) that matches none" in refused(
        packs=[MLP, Pack("layers.0", ["gate", "up"])]
    )


@pytest.mark.parametrize(
    ("members", "got"),
    [
        (["query", "keys"], "no parameters of this module"),
        (["query", "norm"], "a module with weight (5,), bias (5,)"),
        (["query", "scale"], "no parameters of this module"),
    ],
)
def test_a_member_that_is_no_linear_layer_is_refused(members, got):
    assert refused(packs=[Pack("layers.*.attention", members)]) == (
        f"Pack('layers.*.attention') in 'layers.0.attention': expected "
        f"'layers.0.attention.{members[1]}' to be an nn.Linear, got {got}; name linear layers, "
        "relative to the module that the pattern matches"
    )


def test_members_that_read_tensors_of_different_sizes_are_refused():
    def change(built):
        built.layers[1].up = nn.Linear(5, 7, bias=False, device="meta")

    assert refused(change) == (
        "Pack('layers.*') in 'layers.1': expected members with equally many input features, got "
        "(7, 6) for 'layers.1.gate.weight', (7, 5) for 'layers.1.up.weight'; pack layers that read "
        "the same tensor"
    )


def test_a_bias_in_some_members_only_is_refused():
    def change(built):
        built.layers[0].gate = nn.Linear(6, 7, device="meta")

    assert "expected a bias in all members or in none, got 1 for 2 members" in refused(change)


def test_tied_members_are_refused():
    def change(built):
        built.layers[0].gate.weight = built.layers[0].up.weight

    assert (
        "expected parameters of their own, got one that is tied: layers.0.gate.weight = "
        "layers.0.up.weight; leave it out of the pack"
    ) in refused(change)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_members_that_are_partly_frozen_are_refused(name):
    def change(built):
        getattr(built.layers[0].attention.key, name).requires_grad_(False)

    assert refused(change) == (
        "pack of 'layers.0.attention': expected requires_grad of all members to be the same, got "
        f"True for 'layers.0.attention.query.{name}' and False for "
        f"'layers.0.attention.key.{name}'; freeze all of them or none"
    )


SGDS = [Update("**.up.*", SGD(lr=0.1)), Update("**", SGD(lr=0.1))]
PAIR = [Sharding("**.up.*", Degrees(1, 1, 2)), Sharding("**", Degrees(2, 2, 2))]
HALF = [Cast("**.up.weight", torch.bfloat16)]


@pytest.mark.parametrize(
    ("rules", "field", "gate", "up", "advice"),
    [
        (
            {"groups": ["layers.*.gate"]},
            *("the group", "layers.0.gate", "root", "let a module around all of them be the group"),
        ),
        (
            {"formats": HALF},
            *("the dtype", "torch.float32 computed in torch.float32"),
            "torch.float32 computed in torch.bfloat16",
            "build them alike and give them the same Cast",
        ),
        (
            {"sharding": PAIR},
            *("the degrees", PAIR[1].degrees, PAIR[0].degrees, "give them the same Sharding"),
        ),
        (
            {"updates": SGDS},
            *("the rule object", SGDS[1].rule, SGDS[0].rule),
            "make one rule object and give it to the Update of each; units may differ",
        ),
    ],
    ids=["group", "dtype", "degrees", "rule"],
)
def test_members_that_differ_are_refused_with_the_field(rules, field, gate, up, advice):
    assert refused(packs=[MLP], **rules) == (
        f"pack of 'layers.0': expected {field} of all members to be the same, got {gate} for "
        f"'layers.0.gate.weight' and {up} for 'layers.0.up.weight'; {advice}"
    )


@pytest.mark.parametrize("members", [[], ["query"], ["query", "query"], "query"])
def test_a_pack_of_less_than_two_is_refused(members):
    with pytest.raises(ValueError, match="expected two or more different members in Pack"):
        Pack("layers.*", members)
