"""Training a mixture of experts, sharded: the mathematics of one process, expert by expert."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from packages.fsdp_runtime.tests.trainer.commands import (
    resumed,
    small_run,
    steps_of,
    validation_losses,
)
from packages.fsdp_runtime.tests.trainer.plain_training import (
    PlainOptimizer,
    loss_of,
    unsharded_losses,
)
from testing.ranks import run_ranks

from sshsdp_fsdp_runtime import ModelSpec, Sharding, build_plan, fully_shard
from sshsdp_fsdp_runtime.trainer import Decoder, DecoderShape, OptimizerConfig, main
from sshsdp_fsdp_runtime.trainer.recipe import decoder_packs, decoder_updates
from sshsdp_shardchain import Degrees
from sshsdp_updates import AdamW, Muon
from sshsdp_zerosm import Topology, connect

SHAPE = DecoderShape(
    vocab=11, context=8, width=12, layers=2, heads=3, kv_heads=1, hidden=10, experts=5, active=2
)
SPARSE = replace(SHAPE, experts=9, active=1)  # more than any two tokens use
CONFIG = OptimizerConfig()
STEPS, MICROBATCHES = 2, 2


def fresh(shape):
    return Decoder(shape, seed=1).double()


def in_fp64(updates):
    """The recipe with Muon's iteration in FP64; one rule object stays one."""
    exact = {id(u.rule): u.rule for u in updates}
    for key, rule in exact.items():
        if isinstance(rule, Muon):
            exact[key] = replace(rule, ns_dtype=torch.float64)
    return [replace(update, rule=exact[id(update.rule)]) for update in updates]


def rows(shape, step, rank):
    """One sequence per rank and microbatch; with SPARSE two tokens."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    length = 3 if shape is SPARSE else 8
    return torch.randint(0, 11, (MICROBATCHES, 1, length), generator=generator).unbind()


@cache
def unsharded(shape, world):
    """Weights after training in one process."""
    model = fresh(shape)
    optimizer = PlainOptimizer(model, CONFIG)
    for step in range(STEPS):
        model.zero_grad()
        for rank in range(world):
            for part in rows(shape, step, rank):
                (loss_of(model, part)[0] / world).backward()
        optimizer.step(1.0)
    return {name: value.clone() for name, value in model.state_dict().items()}


def train(rank, shape, topology, degrees, form):
    transport = connect(rank.rank, rank.world, rank.store, timeout=30, topology=topology)
    model = fully_shard(
        fresh(shape),
        sharding=[Sharding("**", degrees)],
        groups=["layers.*"],
        packs=decoder_packs(shape),
        updates=in_fp64(decoder_updates(CONFIG, shape)),
        transport=transport,
        form=form,
        poison=form == "private",
    )
    for step in range(STEPS):
        for part in rows(shape, step, rank.rank):
            loss_of(model, part)[0].backward()
        model.optimizer.step()
        model.optimizer.zero_grad()
    state = {name: value.clone() for name, value in model.full_state_dict().items()}
    model.close()
    transport.close()
    return state


CASES = [
    (SHAPE, Topology.single(1), Degrees(1, 1, 1), "private"),
    (SHAPE, Topology.single(2), Degrees(2, 2, 2), "shared"),
    (SHAPE, Topology.single(3), Degrees(3, 3, 3), "private"),
    (SHAPE, Topology(2, 2), Degrees(2, 2, 4), "private"),
    (SPARSE, Topology.single(2), Degrees(1, 2, 2), "private"),
    (SPARSE, Topology.single(3), Degrees(3, 3, 3), "shared"),
]


@pytest.mark.parametrize(
    ("shape", "topology", "degrees", "form"),
    CASES,
    ids=["one", "two-shared", "three", "two-nodes", "idle-two", "idle-three-shared"],
)
def test_experts_train_as_matrices_of_their_own_in_plain_pytorch(shape, topology, degrees, form):
    expected = unsharded(shape, topology.world)
    for state in run_ranks(train, topology.world, shape, topology, degrees, form, timeout=90):
        for name, value in expected.items():
            torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-11)


def test_an_expert_that_no_rank_uses_only_decays():
    topology, degrees = Topology.single(3), Degrees.for_zero3(3)
    state = run_ranks(train, 3, SPARSE, topology, degrees, "private")[0]
    assert unused(state) == unused(unsharded(SPARSE, 3)) != []


def unused(state):
    """The experts whose matrices are the first ones, but for weight decay."""
    first, decayed = fresh(SPARSE).state_dict(), (1 - CONFIG.muon_lr * CONFIG.weight_decay) ** STEPS
    return [
        (name, expert)
        for name, weight in first.items()
        if weight.ndim == 3
        for expert in range(SPARSE.experts)
        if torch.allclose(state[name][expert], weight[expert] * decayed, rtol=1e-12, atol=0)
    ]


def test_the_recipe_gives_every_matrix_of_an_expert_to_muon_and_the_router_to_adamw():
    spec = ModelSpec.of(Decoder(SHAPE))
    packs = decoder_packs(SHAPE)
    updates = decoder_updates(CONFIG, SHAPE)
    plan = build_plan(spec, 3, packs=packs, updates=updates)
    rules = {c.parameter.name: updates[c.update] for c in plan.claims}
    for name in ("gate_proj", "up_proj", "down_proj"):
        update = rules[f"layers.1.mlp.{name}"]
        assert isinstance(update.rule, Muon)
        assert update.unit.name == "experts()"
    assert isinstance(rules["layers.1.mlp.router.weight"].rule, AdamW)
    assert rules["layers.1.mlp.router.weight"].rule.weight_decay == CONFIG.weight_decay
    [made] = [each for each in plan.update_plans if isinstance(each.rule, Muon)]
    shapes = [unit.shape for unit in made.units]
    assert shapes.count((10, 12)) == 2 * 2 * SHAPE.experts
    assert shapes.count((12, 10)) == 2 * SHAPE.experts


def test_the_recipe_for_adamw_decays_experts_and_routers_as_matrices():
    updates = decoder_updates(OptimizerConfig(name="adamw"), SHAPE)
    plan = build_plan(ModelSpec.of(Decoder(SHAPE)), 2, updates=updates)
    decays = {c.parameter.name: updates[c.update].rule.weight_decay for c in plan.claims}
    assert {decay for name, decay in decays.items() if ".mlp." in name} == {0.1}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of the command on one, two and three ranks."""
    folder = tmp_path_factory.mktemp("experts")
    sizes = ["--model.experts", "4", "--model.active", "2", "--batch", "6"]
    for ranks in (1, 2, 3):
        run = [*small_run(folder), *sizes, "--ranks", str(ranks), "--name", f"on{ranks}"]
        assert main(run) == 0
    return folder / "runs"


def test_losses_of_a_run_are_those_of_plain_pytorch(runs):
    expected = unsharded_losses(runs / "on1")
    for ranks in (1, 2, 3):
        losses = [loss for loss, _, _ in steps_of(runs / f"on{ranks}").values()]
        assert losses == pytest.approx(expected, abs=2e-5)
    assert expected[-1] < expected[0] - 0.2


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_resumed_run_with_experts_is_the_uninterrupted_run(runs, ranks):
    whole = runs / "on2"
    run = resumed(whole, ranks)
    if ranks == 2:
        assert steps_of(run) == steps_of(whole)
        assert validation_losses(run) == validation_losses(whole)
    else:
        losses = [loss for loss, _, _ in steps_of(run).values()]
        assert losses == pytest.approx([v[0] for v in steps_of(whole).values()], abs=2e-5)
        assert validation_losses(run) == pytest.approx(validation_losses(whole), abs=2e-5)
    assert (run / "sample.txt").stat().st_size > 0
