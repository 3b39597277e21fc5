"""Compiled blocks and compiled models: the same mathematics, and graphs that are not cut."""

import os
import shutil

import pytest
import torch
from testing.ranks import run_ranks
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from sshsdp_fsdp_runtime import Pack, Update, fully_shard
from sshsdp_updates import SGD
from sshsdp_zerosm import connect

from .scenes import on_ranks

# The compiler asks for .grad of what a module with hooks is given, sharded or not; it hides the
# warning from all but those to whom warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
WORDS, WIDTH, STEPS = 11, 6, 2
SHARED = {"form": "shared"}
PRIVATE = {
    "form": "private",
    "poison": True,
    "slots": 1,
    "packs": [Pack("layers.*", ["query", "key"])],
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        y = self.norm(x)
        return x + torch.tanh(self.query(y)) * self.key(y)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Recomputing(Model):
    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x)


def train(forward, optimizer, ranks, divisor):
    for step in range(STEPS):
        for rank in ranks:
            for microbatch in range(2):
                generator = torch.Generator().manual_seed(100 * step + 10 * microbatch + rank)
                ids = torch.randint(0, WORDS, (2, 5), generator=generator)
                (forward(ids).square().mean() / divisor).backward()
        optimizer.step()
        optimizer.zero_grad()


def blocks(model, backend="aot_eager"):
    for layer in model.layers:
        layer.compile(backend=backend)
    return model


def wrapped_blocks(model):
    for index, layer in enumerate(model.layers):
        model.layers[index] = torch.compile(layer, backend="aot_eager")
    return model


def whole(model, backend="aot_eager"):
    return torch.compile(model, backend=backend)


def itself(model):
    model.compile(backend="aot_eager")
    return model


def fresh(kind=Model, dtype=torch.float64):
    torch.manual_seed(0)
    return kind().to(dtype)


def scene(rank, other, cases):
    """Per case: weights after training, how often graphs were cut, and how many there are."""
    results = []
    for before, after, options in cases:
        torch._dynamo.reset()
        counters.clear()
        model = fresh()
        if before:
            before(model)
        model = fully_shard(
            model, transport=other.transport, updates=[Update("**", SGD(lr=0.1))], **options
        )
        forward = after(model) if after else model
        train(forward, model.optimizer, [rank.rank], 1)
        state = {k.replace("_orig_mod.", ""): v for k, v in model.full_state_dict().items()}
        graphs = counters["stats"]["unique_graphs"]
        results.append((state, sum(counters["graph_break"].values()), graphs))
        model.close()
    return results


def check(world, cases, most_graphs):
    plain = fresh()
    train(plain, torch.optim.SGD(plain.parameters(), lr=0.1), range(world), world)
    for results in on_ranks(world, scene, cases, model=nn.Linear(1, 1)):
        for state, cuts, graphs in results:
            assert cuts == 0
            assert 1 <= graphs <= most_graphs
            for name, value in plain.state_dict().items():
                torch.testing.assert_close(state[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.full)])
def test_blocks_that_are_compiled_after_sharding_are_one_graph_for_all(world):
    check(world, [(None, blocks, SHARED), (None, blocks, PRIVATE)], 1)


@pytest.mark.full
def test_blocks_that_were_compiled_or_wrapped_before_or_after():
    cases = [
        (way, None, options) if before else (None, way, options)
        for way in (blocks, wrapped_blocks)
        for options in (SHARED, PRIVATE)
        for before in (True, False)
        if not (before and way is wrapped_blocks)
    ]
    check(2, cases, 1)


def test_a_model_that_is_compiled_as_a_whole_is_one_graph_where_weights_stay():
    check(2, [(None, whole, SHARED)], 1)


@pytest.mark.full
def test_a_model_that_compiles_itself_is_one_graph_where_weights_stay():
    check(2, [(None, itself, SHARED)], 1)


@pytest.mark.full
def test_where_weights_are_dropped_graphs_end_at_groups():
    check(2, [(None, whole, PRIVATE), (None, itself, PRIVATE)], 1 + len(fresh().layers))


def test_weights_are_fetched_for_compiled_blocks_that_are_called_alone():
    def direct(rank, model):
        blocks(model)
        x = torch.linspace(-1, 1, WIDTH, dtype=torch.float64).expand(2, WIDTH)
        model.layers[1](x)
        with model.unsharded("layers.1.**") as full:
            for value in full.values():
                value.add_(0.5)
        with torch.no_grad():
            y = model.layers[1](x)
        return y, model._sharded.weights["layers.1"].ready

    edited = fresh()
    with torch.no_grad():
        for parameter in edited.layers[1].parameters():
            parameter.add_(0.5)
        x = torch.linspace(-1, 1, WIDTH, dtype=torch.float64).expand(2, WIDTH)
        expected = edited.layers[1](x)
    for y, ready in on_ranks(2, direct, model=fresh(), **SHARED):
        assert ready
        torch.testing.assert_close(y, expected)


# What a user gets without choosing a backend. A cold compilation takes minutes on a busy machine.

PATIENCE = 1800  # seconds
COMPILER = os.environ.get("CXX", "g++")
CASES = [
    (Model, torch.float64, blocks, SHARED),
    (Model, torch.float64, whole, PRIVATE),
    (Recomputing, torch.float64, blocks, PRIVATE),
    (Recomputing, torch.float64, whole, SHARED),
    (Model, torch.float32, whole, SHARED),
    (Recomputing, torch.float32, blocks, SHARED),
]


@pytest.mark.full
# Of torch itself, where inductor is imported.
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.skipif(
    shutil.which(COMPILER) is None,
    reason=f"inductor needs a C++ compiler, expected {COMPILER} on the path",
)
def test_inductor_trains_as_eager_pytorch_also_where_activations_are_recomputed(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def main(rank):
        results = []
        with connect(rank.rank, rank.world, rank.store, timeout=PATIENCE) as transport:
            for kind, dtype, way, options in CASES:
                torch._dynamo.reset()
                counters.clear()
                model = fully_shard(
                    fresh(kind, dtype),
                    transport=transport,
                    updates=[Update("**", SGD(lr=0.1))],
                    **options,
                )
                forward = way(model, "inductor")
                train(forward, model.optimizer, [rank.rank], 1)
                stats = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
                results.append((model.full_state_dict(), *stats))
                model.close()
        return results

    for results in run_ranks(main, 2, timeout=PATIENCE):
        for (kind, dtype, _, _), (state, graphs, cuts) in zip(CASES, results, strict=True):
            plain = fresh(kind, dtype)
            train(plain, torch.optim.SGD(plain.parameters(), lr=0.1), range(2), 2)
            bound = 1e-10 if dtype == torch.float64 else 1e-5
            assert (graphs > 0, cuts) == (True, 0)
            for name, value in plain.state_dict().items():
                assert (state[name] - value).norm() <= bound * value.norm(), name
