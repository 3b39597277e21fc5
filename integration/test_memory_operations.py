"""The three memory operations that FSDP2 performs are absent here, seen by the ledger from outside.

`test_fsdp2_costs.py` shows them in FSDP2: weights copied in and out of a gather, gradients packed
for a reduction, gradients added apart from the reduction.
"""

import pytest
import torch
from testing.ledger import Kind, Ledger
from testing.ranks import Rank, run_ranks
from torch import nn

from sshsdp_fsdp_runtime import Sharding, fully_shard
from sshsdp_shardchain import Degrees
from sshsdp_zerosm import connect

WORLD, LAYERS, MICROBATCHES = 2, 3, 3
WIDTH, HIDDEN, VOCABULARY = 24, 40, 32
SHARED, PRIVATE = "shared", "private"


class Block(nn.Module):
    """A norm, linear layers with and without bias, and one that is used twice."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.mix = nn.Linear(HIDDEN, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        hidden = torch.tanh(self.mix(torch.tanh(self.mix(self.up(self.norm(x))))))
        return x + self.down(hidden)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def kinds_of_parameters():
    """Names of weights of linear layers, their biases, and parameters of norms."""
    names = [name for name, _ in Model().named_parameters() if name != "embedding.weight"]
    norms = [name for name in names if "norm" in name]
    biases = [name for name in names if name.endswith("bias") and name not in norms]
    return [name for name in names if name not in norms + biases], biases, norms


LINEAR, BIASES, NORMS = kinds_of_parameters()
BYTES = {name: parameter.nbytes for name, parameter in Model().named_parameters()}


def microbatches(rank: Rank, form):
    """Per microbatch the ledger of one rank; the bytes of the plan's lists."""
    torch.manual_seed(0)
    transport = connect(rank.rank, rank.world, rank.store, timeout=20)
    model = fully_shard(
        Model(),
        sharding=[Sharding("**", Degrees(WORLD, WORLD, WORLD))],
        transport=transport,
        form=form,
        slots=LAYERS,  # a slot per layer, so that a range belongs to one parameter
    )
    state = model._sharded
    ranges = {root.name.partition(".")[2]: root.tensor for root in state.buffers.roots}
    ranges = {name: tensor for name, tensor in ranges.items() if tensor.numel()}
    ranges |= {handle.spec.name: handle.gradient for handle in state.handles}
    found = []
    for microbatch in range(MICROBATCHES):
        ids = torch.randint(0, VOCABULARY, (2, 5), generator=torch.manual_seed(microbatch))
        with Ledger(ranges, transport.counters) as ledger:
            model(ids).square().mean().backward()
            model.finalize_gradients()
        found.append((ledger.entries, dict(ledger.counted)))
    lists = [atom.layout.numel * atom.weight_dtype.itemsize for atom in model.plan.atoms]
    model.close()
    transport.close()
    return found, sorted(ranges), lists


@pytest.fixture(scope="module")
def shared():
    return run_ranks(microbatches, WORLD, SHARED)


@pytest.fixture(scope="module")
def private():
    return run_ranks(microbatches, WORLD, PRIVATE)


def each(ranks):
    """Entries and counters of every microbatch of every rank."""
    return [microbatch for found, *_ in ranks for microbatch in found]


def writes(entries, name):
    return [entry for entry in entries if entry.writes.get(name)]


def slots(ranks):
    _, ranges, _ = ranks[0]
    return [name for name in ranges if name.startswith("gradients.slot")]


def test_weights_are_neither_copied_nor_written_when_all_ranks_share_them(shared):
    for entries, counted in each(shared):
        reads = [entry for entry in entries if entry.reads.get("shared_weights")]
        assert len(reads) > 2 * len(LINEAR)
        assert {entry.kind for entry in reads} <= {Kind.MATMUL, Kind.OTHER}
        assert writes(entries, "shared_weights") == []
        assert (counted["pulled_bytes"], counted["put_bytes"]) == (0, 0)


def test_private_weights_are_pulled_once_for_forward_and_once_for_backward(private):
    (_, ranges, lists), _ = private
    weights = [name for name in ranges if name.startswith("weights.slot")]
    assert len(weights) == LAYERS + 1
    for entries, counted in each(private):
        # A rank's own shard, which lies elsewhere, is copied as those of its peers are.
        assert counted["pulled_bytes"] == 2 * sum(lists)
        into = [entry for entry in entries if any(entry.writes.get(name) for name in weights)]
        assert {entry.kind for entry in into} == {Kind.COPY}
        assert sum(entry.written_bytes for entry in into) == 2 * sum(lists)
        out = [entry for entry in entries if any(entry.reads.get(name) for name in weights)]
        assert Kind.COPY not in {entry.kind for entry in out}


@pytest.mark.parametrize("form", [SHARED, PRIVATE])
@pytest.mark.parametrize("name", LINEAR)
def test_a_product_puts_the_gradient_of_a_linear_weight_where_it_is_reduced(request, form, name):
    uses = ["aten.mm.out", "aten.addmm.out"] if "mix" in name else ["aten.mm.out"]
    for entries, _ in each(request.getfixturevalue(form)):
        written = writes(entries, name)
        assert [(entry.op, entry.written_bytes) for entry in written] == [
            (use, BYTES[name]) for use in uses
        ]
        assert [entry.allocated_bytes for entry in written] == [0] * len(uses)


@pytest.mark.parametrize("name", BIASES)
def test_a_sum_puts_the_gradient_of_a_bias_where_it_is_reduced(shared, name):
    for entries, _ in each(shared):
        first, *later = writes(entries, name)
        assert (first.op, first.writes[name]) == ("aten.sum.IntList_out", BYTES[name])
        assert [entry.op for entry in later] == (["aten.add_.Tensor"] if "mix" in name else [])


def test_only_gradients_of_norms_are_copied_and_only_their_bytes(shared):
    names = slots(shared)
    for entries, _ in each(shared):
        for name in NORMS:
            (copy,) = writes(entries, name)
            assert (copy.kind, copy.written_bytes) == (Kind.COPY, BYTES[name])
        copies = [
            entry
            for entry in entries
            if entry.kind is Kind.COPY and any(entry.writes.get(name) for name in names)
        ]
        assert sum(entry.written_bytes for entry in copies) == sum(BYTES[name] for name in NORMS)
        # Nothing packs, clones or hands on a gradient either.
        assert not any(
            entry.kind is Kind.COPY and entry.reads.get(name) for entry in entries for name in names
        )


def test_autograd_keeps_and_adds_no_gradients(shared):
    names = slots(shared)
    for entries, _ in each(shared):
        inside = [entry for entry in entries if entry.node == "AccumulateGrad"]
        assert sum(entry.allocated_bytes for entry in inside) == 0
        written = [entry for entry in inside if any(entry.writes.get(name) for name in names)]
        assert [entry.kind for entry in written] == [Kind.COPY] * len(NORMS)


def test_nothing_is_zeroed_but_the_rows_of_the_embedding(shared):
    for entries, _ in each(shared):
        (zero,) = (entry for entry in entries if entry.kind is Kind.ZERO)
        assert zero.writes["embedding.weight"] == zero.written_bytes == BYTES["embedding.weight"]
        (rows,) = [e for e in writes(entries, "embedding.weight") if e is not zero]
        assert rows.op == "aten.index_add_.default"


@pytest.mark.parametrize("form", [SHARED, PRIVATE])
def test_main_gradients_are_written_by_the_reduction_alone(request, form):
    for found, _, lists in request.getfixturevalue(form):
        chunks = sorted(nbytes // WORLD for nbytes in lists)
        for microbatch, (entries, counted) in enumerate(found):
            written = writes(entries, "accumulators")
            assert sorted(entry.writes["accumulators"] for entry in written) == chunks
            # The first sum overwrites, later ones are added; both are one pass over the chunk.
            op = "aten.mul.out" if microbatch == 0 else "aten.add_.Tensor"
            assert {entry.op for entry in written} == {op}
            assert counted["reduced_bytes"] == WORLD * sum(chunks)


def test_no_operation_makes_a_tensor_as_large_as_a_gradient_list(shared):
    _, _, lists = shared[0]
    for entries, _ in each(shared):
        assert max(entry.allocated_bytes for entry in entries) < min(lists)
