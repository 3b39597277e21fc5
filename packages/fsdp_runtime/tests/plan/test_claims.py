"""Rules that don't fit the model are refused with a text that says what to do."""

import pytest
import torch
from testing.models import TiedModel

from sshsdp_fsdp_runtime import (
    Cast,
    ModelSpec,
    Options,
    PlanError,
    Sharding,
    Update,
    build_plan,
    is_matrix,
)
from sshsdp_fsdp_runtime.plan import WeightForm
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD, AdamW
from sshsdp_zerosm import Topology

SPEC = ModelSpec.of(TiedModel())
EVERYTHING = Update("**", AdamW())


def refused(world=2, **rules):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the text is returned)
        build_plan(SPEC, world, **rules)
    return str(caught.value)


def test_the_first_rule_that_matches_wins():
    rules = [Update("**", AdamW(), where=is_matrix), Update("**", SGD(lr=0.1))]
    claims = {c.parameter.name: c.update for c in build_plan(SPEC, 2, updates=rules).claims}
    assert claims["layers.0.up.weight"] == 0
    assert claims["layers.0.up.bias"] == 1
    assert claims["layers.0.frozen"] is None


def test_a_rule_that_claims_nothing_is_refused():
    text = refused(updates=[Update("**.quary.weight", AdamW()), EVERYTHING])
    assert text == (
        "expected every rule to claim a parameter, got Update('**.quary.weight') that claims none; "
        "check the pattern ('*' stays within a name, '**' crosses dots), or move it before the "
        "rules that match first"
    )


def test_a_rule_after_the_general_one_is_refused():
    assert "got Cast('layers.**') that claims none" in refused(
        formats=[Cast("**", torch.bfloat16), Cast("layers.**", torch.float32)]
    )


def test_an_unclaimed_trainable_parameter_is_refused():
    assert refused(updates=[Update("layers.**", AdamW())]) == (
        "expected every trainable parameter to be claimed by an Update rule, got none for 'gain'; "
        'end the list with Update("**", AdamW(...)) or freeze it with requires_grad_(False)'
    )


def test_a_parameter_without_degrees_is_refused():
    text = refused(sharding=[Sharding("layers.**", Degrees(2, 2, 2))])
    assert text == (
        "expected a Sharding rule for every parameter, got none for 'gain'; end the list with "
        'Sharding("**", ...)'
    )


def test_degrees_that_do_not_fit_the_ranks_are_refused_with_some_that_do():
    assert refused(world=4, sharding=[Sharding("**", Degrees(3, 3, 3))]) == (
        "Sharding('**'): expected zero1 to divide the world of 4 ranks, got zero1=3; "
        "use Degrees(zero3=2, zero2=2, zero1=2), or 6 ranks"
    )


def test_a_shared_mapping_over_several_nodes_is_refused_with_what_is_accepted():
    across = [Sharding("**", Degrees(4, 4, 4))]
    assert refused(Topology(2, 2), sharding=across, options=Options(form="shared")) == (
        "Sharding('**'): expected form='auto' or 'private' where weights are sharded over more "
        "ranks than one node has, got form='shared' with zero3=4 and 2 ranks per node; use "
        "form='auto', or zero3=2"
    )
    for form in ("auto", "private"):
        build_plan(SPEC, Topology(2, 2), sharding=across, options=Options(form=form))
    inside = [Sharding("**", Degrees(2, 4, 4))]
    build_plan(SPEC, Topology(2, 2), sharding=inside, options=Options(form="shared"))


def test_weights_are_shared_where_a_node_holds_the_group_and_private_elsewhere():
    sharding = [Sharding("layers.0.**", Degrees(4, 4, 4)), Sharding("**", Degrees(2, 2, 4))]
    plan = build_plan(SPEC, Topology(2, 2), sharding=sharding)
    forms = {group.label: {atom.form for atom in group.atoms} for group in plan.groups}
    assert forms["layers.0"] == {WeightForm.GATHERED}
    assert forms["layers.1"] == {WeightForm.ALIASED}


def test_without_rules_weights_stay_within_a_node_and_updates_are_spread_over_all():
    degrees = {claim.degrees for claim in build_plan(SPEC, Topology(2, 3)).claims}
    assert degrees == {Degrees(3, 3, 6), Degrees(3, 3, 3)}  # the latter of frozen parameters


def test_frozen_parameters_are_cut_for_weights_only():
    plan = build_plan(SPEC, 4, sharding=[Sharding("**", Degrees(2, 2, 4))])
    degrees = {claim.parameter.name: claim.degrees for claim in plan.claims}
    assert degrees["layers.0.frozen"] == Degrees(2, 2, 2)
    assert degrees["layers.0.up.weight"] == Degrees(2, 2, 4)


def test_a_cast_to_integers_is_refused():
    assert refused(formats=[Cast("**", torch.int32)]) == (
        "expected a floating-point dtype in Cast('**'), got torch.int32"
    )


def test_a_group_pattern_that_matches_no_module_is_refused():
    assert refused(groups=["layer.*"]) == (
        "expected every group pattern to match a module, got 'layer.*' that matches none; patterns "
        "of groups name modules, not parameters"
    )


def test_a_model_without_parameters_is_refused():
    with pytest.raises(PlanError, match="expected a model with parameters, got one without"):
        build_plan(ModelSpec.of(torch.nn.ReLU()), 2)


def test_poison_needs_private_memory():
    from sshsdp_fsdp_runtime import Options

    with pytest.raises(ValueError, match="use form='private' to poison"):
        Options(form="shared", poison=True)


def test_a_trainable_parameter_in_float16_is_refused_by_name_and_a_frozen_one_is_not():
    model = torch.nn.Linear(2, 2, dtype=torch.float16)
    with pytest.raises(PlanError, match=r"float16 for 'weight'; use Cast\(.*bfloat16"):
        build_plan(ModelSpec.of(model), 2)
    build_plan(ModelSpec.of(model.requires_grad_(False)), 2)
