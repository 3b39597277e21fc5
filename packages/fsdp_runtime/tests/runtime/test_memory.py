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
from torch import nn
from torch.nn import functional

from sshsdp_fsdp_runtime import Cast, ModelSpec, Options, Sharding, build_plan, fully_shard
from sshsdp_shardchain import Degrees
from sshsdp_zerosm import connect

from .scenes import ids, on_ranks, on_ranks_in_turn


class Deep(nn.Module):
    """Many small layers, some of them empty or frozen."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(13, 3)
        self.layers = nn.ModuleList(nn.Linear(3, 3, bias=index % 2 == 0) for index in range(7))
        self.layers[2].requires_grad_(False)
        self.nothing = nn.Parameter(torch.ones(0, 5))
        self.head = nn.Linear(3, 13)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


class Wide(nn.Module):
    """No groups but the root, and a matrix that is larger than all the rest."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(13, 301)
        self.head = nn.Linear(301, 13, bias=False)

    def forward(self, ids):
        return self.head(self.embedding(ids))


ROLES = {
    r"weights": "weights",
    r"shared_weights": "weights",
    r"shards": "weights",
    r"weights\.slot\d+": "weight slots",
    r"gradients\.slot\d+": "gradient slots",
    r"accumulators": "gradient sums",
    r"main_grads": "main gradients",
    r"main_weights": "main weights",
    r"votes": "votes",
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
        (shared if arena.shared else own)[role_of(name)] += arena.nbytes
    for flat in model.optimizer._flats:
        for field in flat.source.rule.state_fields():
            own["optimizer state"] += flat.tensors[field.name].nbytes
    return own, shared


def resting_bytes(degrees, numel, weight, state_fields):
    """DESIGN 4.6: bytes per rank of what stays between steps; main weights are FP32."""
    zero3, zero2, zero1 = degrees
    separate = 4 * numel / zero1 if weight != 4 else 0
    sums = 4 * numel / zero2 + (4 * numel / zero1 if zero1 != zero2 else 0)
    return weight * numel / zero3 + sums + separate + 4 * state_fields * numel / zero1


NESTED = [(1, 1, 1), (1, 2, 4), (2, 2, 4), (4, 4, 4), (2, 2, 2)]


@pytest.mark.parametrize(
    ("model", "cast", "form"),
    [(TiedModel, True, "private"), (Deep, False, "private"), (Wide, True, "shared")],
)
def test_every_role_takes_the_bytes_that_were_forecast(model, cast, form):
    def scene(rank, model):
        before = bytes_by_role(model)
        train(model, rank.rank)
        assert bytes_by_role(model) == before
        rows = {row.role: (row.local, row.shared) for row in model.plan.forecast().rows}
        own, shared = before
        return {role: (own[role], shared[role]) for role in rows}, rows

    common = {
        "model": model(),
        "formats": [Cast("**", torch.bfloat16)] if cast else [],
        "form": form,
    }
    cases = [common | {"sharding": [Sharding("**", Degrees(*case))]} for case in NESTED]
    for results in on_ranks_in_turn(4, scene, cases):
        for actual, forecast in results:
            assert actual == forecast


@pytest.mark.parametrize("degrees", [(1, 1, 1), (1, 8, 16), (4, 8, 16), (16, 16, 16), (4, 4, 4)])
@pytest.mark.parametrize("cast", [(), (Cast("**", torch.bfloat16),)], ids=["fp32", "bf16"])
def test_resting_bytes_per_element_follow_the_formula(cast, degrees):
    with torch.device("meta"):
        model = nn.Linear(4096, 4096, bias=False)
    plan = build_plan(
        ModelSpec.of(model),
        16,
        sharding=[Sharding("**", Degrees(*degrees))],
        formats=cast,
        options=Options(form="private"),
    )
    rows = {row.role: row.local for row in plan.forecast().rows}
    roles = ("weights", "gradient sums", "main gradients", "main weights", "optimizer state")
    expected = resting_bytes(degrees, 4096**2, 2 if cast else 4, state_fields=2)
    assert sum(rows[role] for role in roles) == expected


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


def build_often(rank: Rank, form):
    """Models on one transport that goes on, closed or only forgotten, with things left over."""
    seen, left = [], []
    with connect(rank.rank, rank.world, rank.store, timeout=20) as transport:
        for round_ in range(8):
            model = fully_shard(TiedModel(), transport=transport, form=form)
            train(model, rank.rank)
            if round_ % 2:  # what a user may keep of a model that is closed
                model(ids()).sum().backward()
                left = [model.optimizer, model.gain.grad, model, list(model.parameters())]
                model.close()
            else:
                left.clear()
                del model
                gc.collect()
            seen.append((mapped(), transport.external_bytes, len(os.listdir("/proc/self/fd"))))
        return seen


@pytest.mark.parametrize("form", ["shared", "private"])
def test_models_that_come_and_go_on_one_transport_leave_no_memory_behind(form):
    for seen in run_ranks(build_often, 2, form, timeout=60):
        assert len(set(seen)) == 1, seen
        assert seen[0][0] == 2  # the ranks' boards
