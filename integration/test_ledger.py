"""The ledger sees every copy, zero, sum and product of a program, and whose memory it touches."""

from dataclasses import dataclass

import pytest
import torch
from testing.ledger import Kind, Ledger
from torch import nn

ITEM = 4


def buffers(*sizes):
    """A flat buffer and views of it, one per size."""
    flat = torch.zeros(sum(sizes))
    return flat, list(flat.split(list(sizes)))


def test_packing_copies_of_weights_and_gradients_are_found():
    model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Linear(4, 2, bias=False))
    weights = [p.detach() for p in model.parameters()]
    gathered, views = buffers(32, 8)
    packed = torch.empty(40)
    with Ledger({"gathered": gathered, "packed": packed, "first": weights[0]}) as ledger:
        torch.cat([w.reshape(-1) for w in weights], out=gathered)  # copy-in
        for parameter, view in zip(model.parameters(), views, strict=True):
            parameter.data.copy_(view.view_as(parameter))  # copy-out
        model(torch.ones(3, 8)).sum().backward()
        torch.cat([p.grad.reshape(-1) for p in model.parameters()], out=packed)  # packing
    copy_in, out_of_it = ledger.written("gathered"), ledger.read("gathered")
    assert [(e.op, e.writes["gathered"], e.reads) for e in copy_in] == [
        ("aten.cat.out", 40 * ITEM, {"first": 32 * ITEM})
    ]
    assert [(e.op, e.reads["gathered"]) for e in out_of_it] == [
        ("aten.copy_.default", 32 * ITEM),
        ("aten.copy_.default", 8 * ITEM),
    ]
    assert [e.writes for e in ledger.written("packed", {Kind.COPY})] == [{"packed": 40 * ITEM}]
    assert len(ledger.of(Kind.COPY)) == 4


def test_separate_accumulation_in_a_backward_is_found():
    layer = nn.Linear(8, 4, bias=False)
    layer.weight.grad = torch.zeros(4, 8)
    with Ledger({"gradient": layer.weight.grad}) as ledger:
        layer(torch.ones(3, 8)).sum().backward()
    (added,) = ledger.written("gradient")
    assert (added.op, added.kind, added.node) == ("aten.add_.Tensor", Kind.ADD, "AccumulateGrad")
    assert (added.reads["gradient"], added.writes["gradient"]) == (32 * ITEM, 32 * ITEM)
    products = ledger.of(Kind.MATMUL)
    assert [(e.node, e.allocated_bytes) for e in products] == [
        ("", 12 * ITEM),
        ("MmBackward0", 32 * ITEM),
    ]


class DirectLinear(torch.autograd.Function):
    """Writes the weight's gradient into given memory, or adds it in the same product."""

    @staticmethod
    def forward(ctx, x, weight, slot, add):
        ctx.save_for_backward(x)
        ctx.slot, ctx.add = slot, add
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if ctx.add:
            ctx.slot.addmm_(grad.t(), x)
        else:
            torch.mm(grad.t(), x, out=ctx.slot)
        return None, None, None, None


def test_products_that_write_into_given_memory_are_told_from_copies():
    weight = nn.Parameter(torch.ones(4, 8))
    slot = torch.empty(64)
    with Ledger({"slot": slot}) as ledger:
        for add in (False, True):
            DirectLinear.apply(torch.ones(3, 8), weight, slot[:32].view(4, 8), add).sum().backward()
    first, second = ledger.written("slot")
    assert (first.op, first.kind, first.reads) == ("aten.mm.out", Kind.MATMUL, {})
    assert (second.op, second.reads) == ("aten.addmm_.default", {"slot": 32 * ITEM})
    assert first.writes == second.writes == {"slot": 32 * ITEM}
    assert first.allocated_bytes == second.allocated_bytes == 0
    assert not ledger.written("slot", {Kind.COPY, Kind.ADD, Kind.ZERO})
    assert first.node == "DirectLinearBackward"


def test_operations_on_lists_count_each_tensor():
    source, target = torch.ones(10), torch.ones(10)
    with Ledger({"source": source, "target": target}) as ledger:
        torch._foreach_copy_(list(target.split(4)), list(source.split(4)))
        torch._foreach_add_([target[:4]], [source[:4]])
        torch._foreach_zero_([target[4:], target[:2]])
    copy, add, zero = ledger.entries
    assert (copy.kind, copy.reads, copy.writes) == (Kind.COPY, {"source": 40}, {"target": 40})
    assert (add.kind, add.reads) == (Kind.ADD, {"source": 16, "target": 16})
    assert (zero.kind, zero.reads, zero.writes) == (Kind.ZERO, {}, {"target": 32})


def test_views_touch_no_memory():
    x = torch.ones(4, 6)
    with Ledger({"x": x}) as ledger:
        x.t().view(6, 4).unsqueeze(0).expand(3, 6, 4)[:, :2].detach().chunk(2)
        torch.ops.aten._unsafe_view(x, [24])
    assert ledger.entries == []


@pytest.mark.parametrize(
    ("make", "kind", "read", "allocated"),
    [
        (lambda x: x.clone(), Kind.COPY, 96, 96),
        (lambda x: x.t().contiguous(), Kind.COPY, 96, 96),
        (lambda x: x.to(torch.float64), Kind.COPY, 96, 192),
        (lambda x: x[1:3], None, 0, 0),
        (lambda x: x[:, ::2].clone(), Kind.COPY, 48, 48),
        (lambda x: x[:1].expand(5, 6).clone(), Kind.COPY, 24, 120),
        (lambda x: x[:, ::2].expand(3, 4, 3).clone(), Kind.COPY, 48, 144),
        (lambda x: torch.zeros_like(x), Kind.ZERO, 0, 96),
        (lambda x: x.zero_(), Kind.ZERO, 0, 0),
        (lambda x: x.index_add_(0, torch.tensor([1]), torch.ones(1, 6)), Kind.ADD, 96, 0),
        (lambda x: x @ torch.ones(6, 2), Kind.MATMUL, 96, 32),
        (lambda x: torch.empty_like(x), Kind.EMPTY, 0, 96),
        (lambda x: x.exp_(), Kind.OTHER, 96, 0),
    ],
)
def test_bytes_of_single_operations(make, kind, read, allocated):
    x = torch.ones(4, 6)
    with Ledger({"x": x}) as ledger:
        make(x)
    entry = ledger.entries[-1] if ledger.entries else None
    assert (entry and entry.kind) == kind
    if entry:
        assert (entry.reads.get("x", 0), entry.allocated_bytes) == (read, allocated)


def test_accumulating_writes_by_index_are_sums():
    x = torch.ones(4, 6)
    rows = (torch.tensor([1, 1]),)
    with Ledger({"x": x}) as ledger:
        x.index_put_(rows, torch.ones(2, 6))
        x.index_put_(rows, torch.ones(2, 6), accumulate=True)
    assert [entry.kind for entry in ledger.written("x")] == [Kind.COPY, Kind.ADD]


def test_a_range_gets_only_the_bytes_inside_it():
    flat = torch.zeros(10)
    with Ledger({"middle": flat[3:7]}) as ledger:
        flat[:5].fill_(1)
        flat[7:].fill_(1)
    assert [entry.writes for entry in ledger.entries] == [{"middle": 8}, {}]


class Wrapped(torch.Tensor):
    """Computes on a tensor that it holds."""

    @staticmethod
    def __new__(cls, inner):
        self = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        self.inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(a.inner if isinstance(a, Wrapped) else a for a in args), **(kwargs or {}))


def test_operations_on_tensors_inside_of_others_are_seen():
    inner = torch.ones(4)
    wrapped = Wrapped(inner)
    with Ledger({"inner": inner}) as ledger:
        wrapped.add_(1)
    assert [(e.kind, e.writes) for e in ledger.entries] == [(Kind.ADD, {"inner": 16})]


@dataclass
class Counters:
    pulled_bytes: int = 0


def test_growth_of_counters_is_recorded_while_entered():
    counters = Counters(5)
    ledger = Ledger(counters=counters)
    for _ in range(2):
        with ledger:
            counters.pulled_bytes += 7
        counters.pulled_bytes += 100
    assert ledger.counted == {"pulled_bytes": 14}


def test_the_summary_names_operations_bytes_and_ranges():
    slot = torch.zeros(4)
    with Ledger({"slot": slot}, Counters()) as ledger:
        slot.copy_(torch.ones(4))
        slot.copy_(torch.ones(4))
    assert "copy   aten.copy_.default x2 read 32, written 32, to slot 32" in ledger.summary()
    assert "pulled_bytes: 0" in ledger.summary()
    with pytest.raises(KeyError, match="expected one of the ranges"):
        ledger.written("slots")
