"""Construction that is recorded and replayed gives the values of construction itself."""

import re
from pathlib import Path

import pytest
import torch
from testing.models import TiedModel
from testing.ranks import run_ranks
from torch import nn

from sshsdp_fsdp_runtime import PlanError, Sharding, deferred_init, fully_shard
from sshsdp_fsdp_runtime.runtime.replay import Replay
from sshsdp_shardchain import Degrees
from sshsdp_zerosm import connect


class Odd(nn.Module):
    """All kinds of initialization, some of it changed later, in place, in parts and by copies."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)  # deep copies
        self.recurrent = nn.GRU(3, 5)
        self.filters = nn.Conv2d(2, 3, 3)
        self.normalized = nn.BatchNorm1d(4)
        self.padded = nn.Embedding(7, 3, padding_idx=2)
        self.orthogonal = nn.Parameter(torch.empty(5, 5))
        nn.init.orthogonal_(self.orthogonal)
        self.scaled = nn.Parameter(torch.randn(4, 4) * 0.02)
        self.truncated = nn.Parameter(torch.zeros(3, 7))
        nn.init.trunc_normal_(self.truncated, std=0.02)
        self.sparse = nn.Parameter(torch.empty(6, 6))
        nn.init.sparse_(self.sparse, 0.3)
        self.transposed = nn.Parameter(torch.randn(3, 4).t())
        self.register_buffer("mask", torch.tril(torch.ones(5, 5)))
        self.register_buffer("table", torch.randn(6), persistent=False)
        self.constant = torch.tensor([1.0, 2.0, 3.0])
        rates = torch.linspace(0, 0.5, 3)
        self.dropout = nn.ModuleList(nn.Dropout(rate.item()) for rate in rates)
        self.register_buffer("rates", torch.tensor(rates.tolist()))
        self.view = self.table[2:4]
        with torch.no_grad():
            self.scaled[1].mul_(3)
            self.padded.weight[3] = self.padded.weight[4] * 2
            self.filters.weight.normal_(0, 0.1)  # what was drawn before counts, too


def edited():
    """Casts and edits after the construction."""
    model = TiedModel().to(torch.bfloat16).double()
    with torch.no_grad():
        model.gain.add_(torch.rand(2))
        model.layers[1].up.weight.copy_(model.layers[0].up.weight * 0.5)
    return model


def sharded(rank, build, seed, **options):
    torch.manual_seed(seed)
    with deferred_init():
        model = build()
    with connect(rank.rank, rank.world, rank.store, timeout=20) as transport:
        model = fully_shard(model, transport=transport, **options)
        state = torch.get_rng_state()
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        values = {**model.full_state_dict(), **buffers}
        attributes = {key: v for key, v in vars(model).items() if isinstance(v, torch.Tensor)}
        model.close()
    return values, attributes, state


def built(build, seed):
    torch.manual_seed(seed)
    model = build()
    attributes = {key: v for key, v in vars(model).items() if isinstance(v, torch.Tensor)}
    return {**model.state_dict(), **dict(model.named_buffers())}, attributes, torch.get_rng_state()


def check(results, expected):
    for values, attributes, state in results:
        assert values.keys() == expected[0].keys()
        assert [name for name, value in expected[0].items() if not value.equal(values[name])] == []
        assert all(value.equal(attributes[key]) for key, value in expected[1].items())
        assert state.equal(expected[2])


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("build", [TiedModel, Odd, edited])
def test_weights_buffers_and_the_generator_are_those_of_plain_construction(build, world):
    check(run_ranks(sharded, world, build, 3), built(build, 3))


def test_edits_outside_of_the_context_are_replayed():
    def later():
        torch.manual_seed(5)
        with deferred_init():
            model = TiedModel()
        model.double()
        with torch.no_grad():
            model.head.weight.mul_(2)
        return model

    torch.manual_seed(5)
    expected = TiedModel().double()
    with torch.no_grad():
        expected.head.weight.mul_(2)
    model = fully_shard(later())
    full = model.full_state_dict()
    assert all(value.equal(full[name]) for name, value in expected.state_dict().items())


def test_a_seed_that_is_set_inside_counts():
    def seeded():
        first = nn.Linear(3, 3)
        torch.manual_seed(11)
        return nn.Sequential(first, nn.Linear(3, 3))

    check([sharded_alone(seeded, 4)], built(seeded, 4))


def sharded_alone(build, seed):
    [result] = run_ranks(sharded, 1, build, seed)
    return result


def test_the_generator_is_left_alone_where_it_was_used_since():
    torch.manual_seed(1)
    with deferred_init():
        model = nn.Linear(3, 3)
    drawn = torch.rand(3)
    fully_shard(model)
    torch.manual_seed(1)
    assert drawn.equal(torch.rand(3))
    following = torch.rand(3)
    torch.manual_seed(1)
    with deferred_init():
        model = nn.Linear(3, 3)
    torch.rand(3)
    fully_shard(model)
    assert torch.rand(3).equal(following)


def test_ranks_take_the_seed_of_rank_0_and_keep_their_generators():
    def main(rank):
        values, _, state = sharded(rank, TiedModel, 7 + rank.rank)
        return values, state

    expected, _, after = built(TiedModel, 7)
    (first, first_state), (second, second_state) = run_ranks(main, 2)
    for values in (first, second):
        assert all(value.equal(values[name]) for name, value in expected.items())
    assert first_state.equal(after)
    torch.manual_seed(8)
    assert second_state.equal(torch.get_rng_state())


def test_different_seeds_are_an_error_where_equality_was_asserted():
    def main(rank):
        with pytest.raises(RuntimeError, match="sync='assert', got different seeds"):
            sharded(rank, TiedModel, rank.rank, sync="assert")

    run_ranks(main, 2)


def test_different_constructions_are_an_error_on_every_rank():
    def main(rank):
        def build():
            layer = nn.Linear(3, 3)
            with torch.no_grad():
                layer.bias.fill_(rank.rank)
            return layer

        with pytest.raises(RuntimeError, match="expected every rank to construct the same model"):
            sharded(rank, build, 0)

    run_ranks(main, 2)


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3))
        if self.weight.sum() > 1:
            self.bias = nn.Parameter(torch.rand(3))


def own_generator():
    layer = nn.Linear(2, 2)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0))
    return layer


OUTSIDE = torch.zeros(3)


def changes_outside():
    OUTSIDE.add_(1)
    return nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (Asking, "aten._local_scalar_dense"),
        (lambda: nn.Parameter(torch.rand(3)[torch.rand(3) > 0.5]), "aten.nonzero|aten.index"),
        (own_generator, "aten.normal_.*generator=|generator= for aten.normal_"),
        (changes_outside, "aten.add_"),
    ],
)
def test_what_cannot_be_replayed_is_named(build, named):
    with pytest.raises(RuntimeError, match=named), deferred_init():
        build()


def test_a_refused_plan_leaves_the_model_as_it_was():
    with deferred_init():
        model = TiedModel()
    with pytest.raises(PlanError):
        fully_shard(model, sharding=[Sharding("nothing", Degrees(1, 1, 1))])
    assert fully_shard(model).full_state_dict().keys() == TiedModel().state_dict().keys()


def test_parts_that_were_built_elsewhere_are_refused():
    with deferred_init():
        model = TiedModel()
    model.head = nn.Linear(5, 13)
    with pytest.raises(RuntimeError, match=r"'head\.weight' that is built with values"):
        fully_shard(model)
    with deferred_init():
        model.head = nn.Linear(5, 13)
    with pytest.raises(RuntimeError, match="got parts of 2"):
        fully_shard(model)


def test_attributes_of_parameters_are_kept():
    with deferred_init():
        model = nn.Linear(2, 3)
        model.weight.keep = "this"
        model.bias.requires_grad_(False)
    model = fully_shard(model)
    assert model.weight.keep == "this"
    assert not model.bias.requires_grad


class Holder:
    """Not a module, not a container that can be searched."""

    def __init__(self, tensor):
        self.tensor = tensor


class Hiding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3))
        self.listed = [torch.arange(3.0), {"weight": self.weight}]
        self.hidden = Holder(torch.ones(3))


def test_tensors_in_containers_are_found_and_others_refused():
    with deferred_init():
        model = Hiding()
    model = fully_shard(model)
    assert model.listed[0].equal(torch.arange(3.0))
    assert model.listed[1]["weight"] is model.weight
    with pytest.raises(RuntimeError, match=r"got aten\.mul.*make it a buffer"):
        model.hidden.tensor * 2


# Models on the meta device


class Own(nn.Module):
    """The initialization of its own that Hugging Face models have, after those of its layers."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)


def test_a_model_on_meta_runs_its_own_initialization():
    def main(rank):
        with torch.device("meta"):
            model = Own()
        torch.manual_seed(2 + rank.rank)
        with connect(rank.rank, rank.world, rank.store, timeout=20) as transport:
            model = fully_shard(model, transport=transport)
            described = model.plan.describe()
            values = model.full_state_dict()
            tied = model.first.weight is model.second.weight
            model.close()
        return values, described, tied

    torch.manual_seed(2)
    expected = Own()
    expected.second.weight = expected.first.weight
    torch.manual_seed(2)
    for module in expected.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    expected.apply(expected._init_weights)
    for values, described, tied in run_ranks(main, 2):
        assert tied
        assert "not those of a construction under the same seed" in described
        assert all(value.equal(values[name]) for name, value in expected.state_dict().items())


def test_a_tensor_on_meta_that_nothing_fills_is_named():
    with torch.device("meta"):
        model = TiedModel()
    with pytest.raises(RuntimeError, match=r"got none for 'gain'.*deferred_init\(\)"):
        fully_shard(model)


# Memory


class Wide(nn.Module):
    """Twelve frozen layers, drawn twice."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(12))
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=0.02)
        self.requires_grad_(False)


def peak_of(action):
    """MiB by which the resident memory of this process grew at most."""

    def read(field):
        status = Path("/proc/self/status").read_text()
        return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) / 1024

    Path("/proc/self/clear_refs").write_text("5")
    before = read("VmRSS")
    action()
    return read("VmHWM") - before


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="expected Linux")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # 48 and 24 MiB
def test_memory_stays_near_one_tensor_besides_the_own_shards(dtype):
    def main(_rank):
        def action(width):
            with deferred_init():
                model = Wide(width)
            fully_shard(model.to(dtype)).close()

        action(2)  # imports what it needs
        return peak_of(lambda: action(1024))

    shards = 12 * 1024**2 * dtype.itemsize / 2**20  # MiB
    [peak] = run_ranks(main, 1)
    # One tensor of 4 MiB, or two where it is cast; the C allocator keeps some of what was freed.
    assert peak < shards + 32


@pytest.mark.parametrize("cast", [False, True])
def test_replay_holds_one_tensor_at_a_time(cast, monkeypatch):
    held = []
    execute = Replay._execute

    def watched(replay, operation):
        execute(replay, operation)
        held.append(sum(storage.nbytes() for storage in replay._memory.values()))

    monkeypatch.setattr(Replay, "_execute", watched)
    with deferred_init():
        model = Wide(16)
    fully_shard(model.double() if cast else model)
    one = 16 * 16 * 4
    assert max(held) == (one + 2 * one if cast else one)
