"""Every byte of ours is in the forecast, and none appears or stays beyond it."""

import gc
import os
import re
import weakref
from collections import Counter

import pytest
import torch
from testing.models import TiedModel
from testing.ranks import Rank, run_ranks
from torch.nn import functional

from sshsdp_fsdp_runtime import Cast, Sharding, fully_shard
from sshsdp_shardchain import Degrees
from sshsdp_zerosm import connect

from .scenes import ids, on_ranks

ROLES = {
    r"weights": "weights",
    r"shards": "weights",
    r"weights\.slot\d+": "weight slots",
    r"gradients\.slot\d+": "gradient slots",
    r"main_grads": "main gradients",
    r"main_weights": "main weights",
}


def role_of(arena):
    name = re.sub(r"^model\d+\.", "", arena)
    return next(role for pattern, role in ROLES.items() if re.fullmatch(pattern, name))


def train(model, rank):
    loss = functional.cross_entropy(model(ids(rank)).flatten(0, 1), ids(rank + 1).flatten())
    loss.backward()
    model.optimizer.clip_grad_norm_(1.0)
    model.optimizer.step()
    model.optimizer.zero_grad()


def bytes_by_role(model):
    """What exists: arenas of the transport, and the optimizer's tensors."""
    own, shared = Counter(), Counter()
    for name, arena in model.transport._arenas.items():
        if name.endswith("passes"):
            continue  # a few bytes per parameter for votes, not a buffer of the plan
        if name.endswith("staging"):
            shared["staging"] += arena.nbytes
        elif arena.shared:
            shared["weights"] += arena.nbytes
        else:
            own[role_of(name)] += arena.nbytes
    for flat in model.optimizer._flats:
        for field in flat.source.rule.state_fields():
            own["optimizer state"] += flat.tensors[field.name].nbytes
    return own, shared


@pytest.mark.parametrize("form", ["shared", "private"])
@pytest.mark.parametrize("cast", [(), (Cast("**", torch.bfloat16),)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("everything", [False, True], ids=["degrees111", "degreesPPP"])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_role_takes_the_bytes_that_were_forecast(world, everything, cast, form):
    degree = world if everything else 1

    def scene(rank, model):
        before = bytes_by_role(model)
        train(model, rank.rank)
        assert bytes_by_role(model) == before
        rows = {row.role: (row.local, row.shared) for row in model.plan.forecast().rows}
        own, shared = before
        return {role: (own[role], shared[role]) for role in rows}, rows

    results = on_ranks(
        world,
        scene,
        model=TiedModel(),
        sharding=[Sharding("**", Degrees(degree, degree, degree))],
        formats=cast,
        form=form,
    )
    for actual, forecast in results:
        assert actual == forecast


def test_no_memory_appears_during_training():
    def scene(rank, model):
        transport = model.transport
        train(model, rank.rank)
        arenas, nbytes = set(transport._arenas), transport.external_bytes
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            train(model, rank.rank)
        return (
            set(transport._arenas) == arenas,
            transport.external_bytes == nbytes,
            len(os.listdir("/proc/self/fd")) == descriptors,
        )

    for form in ("shared", "private"):
        assert on_ranks(2, scene, form=form) == [(True, True, True)] * 2


def mapped():
    with open("/proc/self/maps") as file:
        return sum("memfd:sshsdp" in line for line in file)


def build_and_close(rank: Rank, form):
    seen = []
    for _ in range(3):
        with connect(rank.rank, rank.world, rank.store, timeout=20) as transport:
            model = fully_shard(TiedModel(), transport=transport, form=form)
            train(model, rank.rank)
            buffer = weakref.ref(model._sharded.buffers.roots[0].tensor)
            model.close()
        alive = buffer() is not None
        model_gone = weakref.ref(model)
        del model, transport
        gc.collect()
        seen.append((alive, model_gone() is None, mapped(), len(os.listdir("/proc/self/fd"))))
    return seen


@pytest.mark.parametrize("form", ["shared", "private"])
def test_closing_releases_all_memory(form):
    for seen in run_ranks(build_and_close, 2, form, timeout=60):
        assert [(alive, gone, maps) for alive, gone, maps, _ in seen] == [(False, True, 0)] * 3
        assert len({descriptors for *_, descriptors in seen}) == 1
