"""The formula of resting bytes is the forecast, without the rounding to cache lines."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.models import TiedModel

from sshsdp_fsdp_runtime import Cast, ModelSpec, Options, Sharding, Update, build_plan
from sshsdp_fsdp_runtime.plan.resting import resting_terms
from sshsdp_shardchain import Degrees
from sshsdp_updates import SGD, AdamW, Lion
from sshsdp_zerosm import Topology

SPEC = ModelSpec.of(TiedModel())
RESTING = {"weights", "gradient sums", "main gradients", "main weights", "optimizer state"}


@settings(deadline=None, max_examples=60)
@given(
    form=st.sampled_from(["shared", "private"]),
    degrees=st.sampled_from([(1, 1, 1), (1, 2, 4), (2, 2, 2), (2, 4, 8), (4, 4, 8), (8, 8, 8)]),
    cast=st.sampled_from([None, torch.bfloat16, torch.float64]),
    rule=st.sampled_from([AdamW(), Lion(), SGD(), SGD(momentum=0.9)]),
)
def test_terms_add_up_to_the_forecast(form, degrees, cast, rule):
    plan = build_plan(
        SPEC,
        Topology(2, 8),
        sharding=[Sharding("**", Degrees(*degrees))],
        formats=[Cast("**", cast)] if cast else [],
        updates=[Update("**", rule)],
        options=Options(form=form),
    )
    forecast = plan.forecast()
    forecast_bytes = sum(
        row.local + row.shared / forecast.ranks_per_node
        for row in forecast.rows
        if row.role in RESTING
    )
    expected = sum(
        atom.layout.numel * term.nbytes / term.divisor
        for atom in plan.atoms
        for term in resting_terms(atom)
    )
    fields = sum(len(resting_terms(atom)) for atom in plan.atoms)
    assert expected <= forecast_bytes < expected + 64 * fields


@pytest.mark.parametrize(
    ("degrees", "terms"),
    [
        # w = 2 bytes, a = m = 4, AdamW's state = 8.
        ((4, 4, 8), [(2, 4), (4, 4), (4, 8), (4, 8), (8, 8)]),
        ((4, 8, 8), [(2, 4), (4, 8), (4, 8), (8, 8)]),
    ],
)
def test_the_formula_is_that_of_the_design(degrees, terms):
    plan = build_plan(
        SPEC,
        8,
        sharding=[Sharding("**", Degrees(*degrees))],
        formats=[Cast("**", torch.bfloat16)],
    )
    by_name = {p.name: atom for atom in plan.atoms for p in atom.parameters}
    trained = resting_terms(by_name["layers.0.down.weight"])
    assert [(term.nbytes, term.divisor) for term in trained] == terms
    frozen = next(atom for atom in plan.atoms if not atom.trainable)
    assert [(term.nbytes, term.divisor) for term in resting_terms(frozen)] == [(2, 4)]
