"""Every world, degrees and nodes load exactly what every other has saved, and nothing is sent.

Prime and zero-size shapes, scalars, tied, frozen and unused parameters; Muon by heads and NorMuon
with its state per row.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from packages.fsdp_runtime.tests.checkpoint.scenes import on_ranks, sharded
from packages.fsdp_runtime.tests.runtime.scenes import ids
from testing.models import TiedModel
from testing.ranks import run_ranks
from torch.nn import functional

from sshsdp_fsdp_runtime import Cast, Sharding, Update, is_matrix
from sshsdp_fsdp_runtime.checkpoint import load_checkpoint, save_checkpoint
from sshsdp_shardchain import Degrees
from sshsdp_updates import AdamW, Muon, NorMuon, heads
from sshsdp_zerosm import Topology

HIDDEN = 14  # two heads of 7
WORLDS = {
    "1": (None, 1, (1, 1, 1)),
    "2-112": (None, 2, (1, 1, 2)),
    "3-333": (None, 3, (3, 3, 3)),
    "4-124": (None, 4, (1, 2, 4)),
    "2x2-224": (Topology(2, 2), 4, (2, 2, 4)),
    "2x1-111": (Topology(2, 1), 2, (1, 1, 1)),
}
FULL = {
    "4-222": (None, 4, (2, 2, 2)),
    "5-555": (None, 5, (5, 5, 5)),
    "3x1-133": (Topology(3, 1), 3, (1, 3, 3)),
    "3x2-336": (Topology(3, 2), 6, (3, 3, 6)),
    "2x2-244": (Topology(2, 2), 4, (2, 4, 4)),
}
KINDS = [*WORLDS, *(pytest.param(name, marks=pytest.mark.full) for name in FULL)]


def options(kind):
    topology, _, degrees = (WORLDS | FULL)[kind]
    return {
        "topology": topology,
        "sharding": [Sharding("**", Degrees(*degrees))],
        "formats": [Cast("**", torch.bfloat16)],
        "updates": [
            Update("layers.0.up.weight", Muon(lr=1e-2, ns_dtype=torch.float32), unit=heads(size=7)),
            Update("layers.*.up.weight", NorMuon(lr=1e-2, ns_dtype=torch.float32)),
            Update("layers.**", Muon(lr=1e-2, ns_dtype=torch.float32), where=is_matrix),
            Update("**", AdamW(lr=1e-2)),
        ],
    }


def model_of(seed):
    torch.manual_seed(seed)
    return TiedModel(hidden=HIDDEN)


def pieces(model):
    """Each saved tensor's elements on this rank, and the JSON values; they travel by pickle."""
    entries = {e.key: (e.start, e.tensor.tolist()) for e in model.checkpoint_tensors()}
    return entries, model.checkpoint_scalars()


def whole(answers):
    """Flat values by key, put together from the pieces of all ranks."""
    tensors = {}
    for key in answers[0][0]:
        by_start = {start: values for start, values in (a[0][key] for a in answers) if values}
        tensors[key] = [value for start in sorted(by_start) for value in by_start[start]]
    assert all(scalars == answers[0][1] for _, scalars in answers)
    return tensors, answers[0][1]


def save(_rank, model, path):
    for step in range(2):
        loss = functional.cross_entropy(model(ids(step)).flatten(0, 1), ids(step + 9).flatten())
        loss.backward()
        model.optimizer.step()
        model.optimizer.zero_grad()
    save_checkpoint(path, model, {})
    return pieces(model)


def load(_rank, model, root, names):
    answers = []
    for name in names:
        load_checkpoint(root / name, model)
        answers.append(pieces(model))
    return answers


@pytest.fixture(scope="module")
def saved(tmp_path_factory, request):
    """Folder, and per world the values that it has saved."""
    root = tmp_path_factory.mktemp("saved")
    worlds = WORLDS | (FULL if request.config.getoption("--full") else {})
    values = {}
    for kind, (_, world, _) in worlds.items():
        answers = on_ranks(world, save, root / kind, model=model_of(0), **options(kind))
        values[kind] = whole(answers)
    return root, values


@pytest.mark.parametrize("kind", KINDS)
def test_every_world_loads_exactly_what_every_world_has_saved(saved, kind):
    root, expected = saved
    world = (WORLDS | FULL)[kind][1]
    answers = on_ranks(world, load, root, list(expected), model=model_of(1), **options(kind))
    for index, saving in enumerate(expected):
        tensors, scalars = whole([answer[index] for answer in answers])
        assert scalars == expected[saving][1], saving
        for key, values in tensors.items():
            assert values == expected[saving][0][key], (saving, key)


def test_the_matrix_has_state_of_every_kind(saved):
    _, expected = saved
    tensors, scalars = expected["3-333"]
    assert len(tensors["optimizer.state.layers.1.up.weight.second_momentum"]) == HIDDEN
    assert any(tensors["optimizer.state.layers.0.up.weight.momentum_buffer"])
    assert any(tensors["optimizer.state.embedding.weight.exp_avg_sq"])
    assert tensors["model.layers.0.empty"] == []
    assert scalars["step"]["layers.0.unused"] == 0.0


class Watch:
    """Counts what goes through torch.distributed's collectives and point-to-point calls."""

    NAMES = (
        "all_gather_object",
        "gather_object",
        "broadcast_object_list",
        "scatter_object_list",
        "all_gather",
        "all_gather_into_tensor",
        "gather",
        "scatter",
        "broadcast",
        "all_reduce",
        "reduce_scatter_tensor",
        "send",
        "isend",
        "barrier",
    )

    def __enter__(self):
        self.calls = []
        self.originals = {name: getattr(dist, name) for name in self.NAMES}
        for name, original in self.originals.items():
            setattr(dist, name, self.counting(name, original))
            setattr(dist.distributed_c10d, name, getattr(dist, name))
        return self

    def counting(self, name, original):
        def call(*args, **kwargs):
            self.calls.append(name)
            return original(*args, **kwargs)

        return call

    def __exit__(self, *_):
        for name, original in self.originals.items():
            setattr(dist, name, original)
            setattr(dist.distributed_c10d, name, original)


def measure_all(rank, sizes, kind, root):
    dist.init_process_group("gloo", store=rank.store, rank=rank.rank, world_size=rank.world)
    answers = [measure(rank, hidden, kind, root) for hidden in sizes]
    dist.destroy_process_group()
    return answers


def measure(rank, hidden, kind, root):
    """Bytes that ranks tell each other while they save and load."""
    torch.manual_seed(0)
    with sharded(rank, TiedModel(hidden=hidden), **options(kind)) as model:
        transport = model.transport
        told = []
        exchange = transport.exchange

        def counted(payload):
            told.append(len(payload))
            return exchange(payload)

        with Watch() as watch:
            dist.barrier()
            assert watch.calls.pop() == "barrier"
            transport.exchange = counted
            before = copy.copy(transport.counters)
            save_checkpoint(root / f"{hidden}", model, {})
            sent = transport.counters.between_bytes - before.between_bytes
            same = copy.copy(transport.counters)
            same.between_bytes = before.between_bytes
            assert same == before
        messages = sum(told)
        nbytes = sum(e.tensor.nbytes for e in model.checkpoint_tensors() if e.writes)
        return watch.calls, sent, messages, nbytes


@pytest.mark.parametrize("kind", ["2-112", "2x2-224"])
def test_no_tensor_bytes_move_while_saving(tmp_path, kind):
    world = WORLDS[kind][1]
    answers = run_ranks(measure_all, world, (14, 3_500), kind, tmp_path)
    small, large = zip(*answers, strict=True)
    for calls, sent, _, _ in small + large:
        assert calls == []
        assert sent == 0
    told, told_of_large = (sum(row[2] for row in rows) for rows in (small, large))
    saved, saved_of_large = (sum(row[3] for row in rows) for rows in (small, large))
    assert saved_of_large > 100 * saved
    # Names and shapes are told, whatever they hold; cuts are elsewhere, and numbers longer.
    assert told_of_large < 1.5 * told
    assert told_of_large < 0.1 * saved_of_large
