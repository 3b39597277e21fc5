"""What stages over units, rows and sums declare is checked before anything runs."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from sshsdp_shardchain import ChainHolders, Degrees, Layout
from sshsdp_updates import (
    OWN,
    ROW,
    TENSOR,
    Access,
    InProcessWorld,
    Muon,
    NorMuon,
    Operand,
    OperandAccessError,
    ShardedOptimizer,
    Stage,
    StageKind,
    StateField,
    Temporary,
    TemporaryError,
    UpdateRule,
    heads,
)

READ, WRITE, UPDATE = Access.READ, Access.WRITE, Access.UPDATE
U, R = Temporary("u"), Temporary("r", None, ROW)


@dataclass(frozen=True)
class Rule(UpdateRule):
    name: ClassVar[str] = "rule"
    listed: tuple[Stage, ...]
    kept: tuple[Temporary, ...] = (U, R)
    fields: tuple[StateField, ...] = ()

    def hyperparameters(self):
        return {}

    def validate(self, hyperparameters):
        pass

    def state_fields(self):
        return self.fields

    def temporaries(self):
        return self.kept

    def stages(self):
        return self.listed


def write_all(operands, scalars):
    for name in ("u", "r", "main_weight"):
        try:
            for tensor in operands[name]:
                tensor.fill_(1)
        except LookupError:
            continue


def stage(name, *operands, kind="elements", function=write_all):
    return Stage(name, function, tuple(Operand(*o) for o in operands), StageKind(kind))


@pytest.mark.parametrize(
    "stages",
    [
        (stage("first", ("u", READ)),),
        (stage("first", ("u", UPDATE)),),
        (stage("first", ("u", READ)), stage("second", ("u", WRITE))),
    ],
)
def test_a_temporary_that_nobody_has_written_is_named(cluster, stages):
    with pytest.raises(TemporaryError, match=r"stage 'first': expected temporary 'u' from an earl"):
        cluster([(Rule(stages), {"w": torch.zeros(2, 2)})])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (stage("s", ("main_weight", UPDATE, OWN)), "over elements can have, got 'own'"),
        (stage("s", ("r", WRITE, ROW)), "over elements can have, got 'row', write"),
        (stage("s", ("u", WRITE), kind="rows"), "over rows can have, got 'element'"),
        (stage("s", ("r", WRITE, ROW), kind="units"), "over units can have, got 'row'"),
        (stage("s", ("r", WRITE)), "'r' per row, as the field is, got 'element'"),
        (stage("s", ("u", WRITE, ROW)), "'u' per element or unit, as the field is, got 'row'"),
        (stage("s", ("main_grad", READ), kind="reduce"), r"got \[\] per row and \[\] written"),
        (
            stage("s", ("r", WRITE, ROW), ("u", WRITE), kind="reduce"),
            r"got \['r'\] per row and \['u'\] written",
        ),
        (stage("u", ("u", WRITE)), "stage 'u': expected a name of its own"),
        (stage("s", ("x", READ)), "got 'x'; add it to state_fields.. or temporaries"),
    ],
)
def test_units_that_a_kind_of_stage_cannot_have_are_named(cluster, wrong, text):
    with pytest.raises(ValueError, match=text):
        cluster([(Rule((wrong,)), {"w": torch.zeros(2, 2)})])


@pytest.mark.parametrize(
    ("kept", "fields", "text"),
    [
        ((Temporary("main_grad"),), (), "another name for temporary 'main_grad'"),
        ((Temporary("m"),), (StateField("m"),), "another name for temporary 'm'"),
        ((Temporary("m", None, OWN),), (), "'m' per element or per row, got 'own'"),
        ((Temporary("m", None, TENSOR),), (), "'m' per element or per row, got 'tensor'"),
        ((), (StateField("m", None, OWN),), "per element or per row or per tensor, got 'own'"),
        ((U,), (StateField("m", None, TENSOR),), "beside a field per tensor, got others"),
    ],
)
def test_fields_that_cannot_be_are_named(cluster, kept, fields, text):
    with pytest.raises(ValueError, match=text):
        cluster([(Rule((), kept, fields), {"w": torch.zeros(2, 2)})])


@pytest.mark.parametrize("kind", ["units", "rows", "reduce"])
def test_writes_to_what_is_read_are_found_in_all_kinds(cluster, kind):
    def double(operands, scalars):
        for tensor in operands["r" if kind == "rows" else "u"]:
            tensor.mul_(2)
        if kind == "reduce":
            for tensor in operands["s"]:
                tensor.zero_()

    reduced = stage("sum", ("u", READ), ("r", WRITE, ROW), kind="reduce")
    second = {
        "units": stage("bad", ("u", READ, OWN), kind="units", function=double),
        "rows": stage("bad", ("r", READ, ROW), kind="rows", function=double),
        "reduce": stage("bad", ("u", READ), ("s", WRITE, ROW), kind="reduce", function=double),
    }[kind]
    rule = Rule((stage("first", ("u", WRITE)), reduced, second), (U, R, Temporary("s", None, ROW)))
    with pytest.raises(OperandAccessError, match=r"stage 'bad'.*declared READ"):
        cluster([(rule, {"w": torch.zeros(2, 2)})])


def test_a_stage_over_rows_is_told_the_shapes_of_units(cluster):
    seen = []

    def look(operands, scalars):
        pairs = zip(operands["r"], operands.shapes, strict=True)
        seen.append([(tuple(rows.shape), shape) for rows, shape in pairs])

    rule = Rule(
        (
            stage("first", ("u", WRITE)),
            stage("sum", ("u", READ), ("r", WRITE, ROW), kind="reduce"),
            stage("look", ("r", READ, ROW), kind="rows", function=look),
        )
    )
    ours = cluster([(rule, {"a": torch.zeros(6, 5), "b": torch.zeros(4)})], units={"a": heads(2)})
    ours.set_gradients({"a": torch.ones(30), "b": torch.ones(4)}, {"a": 30, "b": 4})
    seen.clear()
    ours.optimizers[0].step()
    assert seen == [[((3, 2), (2, 5)), ((1, 1), (4,))]]


@pytest.mark.parametrize("rule", [Muon(0.1), NorMuon(0.1)], ids=lambda rule: rule.name)
def test_a_skipped_step_leaves_every_bit_and_the_next_is_as_if_it_had_not_been(cluster, rule):
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(6, 5, generator=generator) for _ in range(2)]
    bad = gradients[0].clone()
    bad[-1, -1] = torch.nan
    results = []
    for given in (gradients, [gradients[0], bad, gradients[1]]):
        ours = cluster([(rule, {"w": torch.ones(6, 5)})], world=3)
        for gradient in given:
            ours.set_gradients({"w": gradient}, {"w": 30})
            ours.run(lambda optimizer: optimizer.step())
        fields = [f.tensor.clone() for o in ours.optimizers for f in o.fields()]
        results.append([ours.weight("w", 30), *fields])
        assert [o.state_dict()["state"]["w"]["step"].item() for o in ours.optimizers] == [2] * 3
    assert all(map(torch.equal, *results))


def test_clipping_acts_on_gradients_and_not_on_updates(cluster):
    """A step of the same size, however small the norm that gradients are clipped to."""
    moved = []
    for limit in (1.0, 1e-4):
        generator = torch.Generator().manual_seed(0)
        gradient = 100 * torch.randn(16, 16, generator=generator)
        ours = cluster([(Muon(0.1, weight_decay=0.0), {"w": torch.zeros(16, 16)})], world=2)
        ours.set_gradients({"w": gradient}, {"w": 256})
        ours.run(lambda optimizer, limit=limit: optimizer.clip_grad_norm_(limit))
        ours.run(lambda optimizer: optimizer.step())
        moved.append(ours.weight("w", 256).norm().item())
    assert moved[0] == pytest.approx(moved[1], rel=0.05)


def test_state_can_be_saved_and_loaded_with_values_per_row(cluster):
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(6, 5, generator=generator) for _ in range(2)]

    def build():
        return cluster([(NorMuon(0.1), {"w": torch.ones(6, 5)})], world=2)

    def step(ours, gradient):
        ours.set_gradients({"w": gradient}, {"w": 30})
        ours.run(lambda optimizer: optimizer.step())

    first, second = build(), build()
    step(first, gradients[0])
    second.scatter("main_weight", "w", first.weight("w", 30))
    for source, target in zip(first.optimizers, second.optimizers, strict=True):
        target.load_state_dict(source.state_dict())
    for ours in (first, second):
        step(ours, gradients[1])
    assert torch.equal(first.weight("w", 30), second.weight("w", 30))


def test_norms_go_over_the_exchange_where_no_reducer_is_given(cluster):
    ours = cluster([(Muon(), {"w": torch.zeros(4, 4)})], world=2)
    ours.set_gradients({"w": torch.ones(4, 4)}, {"w": 16})
    exchanges = InProcessWorld(2).ranks()

    def norm(rank):
        return ShardedOptimizer(ours.lists[rank], exchange=exchanges[rank]).grad_norm().item()

    assert ours._each(norm, range(2)) == pytest.approx([4.0, 4.0], rel=1e-6)


def test_fragments_that_are_not_where_holders_say_are_named(cluster):
    (item,) = cluster([(Muon(), {"w": torch.zeros(4, 4)})]).lists[0]
    other = Layout.pack([("pad", 4), ("w", 16)], Degrees(1, 1, 2), 2)
    item.holders = ChainHolders(other)
    with pytest.raises(ValueError, match=r"rank 0 to hold elements \(0, 6\) of 'w'.*got \(0, 16\)"):
        ShardedOptimizer([item])


def test_ranks_that_planned_differently_all_say_so(cluster):
    errors = []
    ours = cluster([(Muon(), {"w": torch.zeros(4, 4)})], world=2)
    exchanges = InProcessWorld(2).ranks()

    def build(rank):
        members = tuple(replace(m, unit=heads(1 + rank)) for m in ours.lists[rank][0].members)
        item = replace(ours.lists[rank][0], members=members)
        try:
            ShardedOptimizer([item], exchange=exchanges[rank])
        except ValueError as error:
            errors.append(str(error))

    ours._each(build, range(2))
    assert len(errors) == 2
    assert all("expected the same plan on every rank" in error for error in errors)
