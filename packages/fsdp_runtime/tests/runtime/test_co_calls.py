"""When members of a pack share a product, seen from outside, and that nothing depends on it."""

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.ledger import Kind

from sshsdp_fsdp_runtime.runtime.packed_linear import side_by_side

from .co_calls import (
    BIASES,
    COLUMNS,
    OPERAND,
    ROWS,
    apart,
    calls,
    check_same,
    inputs,
    ledger_of,
    pair,
    together,
)


def test_the_outputs_of_all_members_are_one_product_that_reads_the_weights_in_place():
    _, model = pair()
    with ledger_of(model) as ledger:
        model(inputs(), together)
    [product] = ledger.of(Kind.MATMUL)
    assert product.reads["weights"] == OPERAND
    assert [entry.op for entry in ledger.read("weights")] == [product.op]
    assert ledger.written("weights") == []
    assert calls(model) == (1, 0, 0, 0)


def test_gradients_in_one_buffer_are_one_product_each_for_the_input_and_the_weights():
    _, model = pair()
    for uses in ("aten.mm.out", "aten.addmm.out"):  # the first microbatch overwrites
        loss = model(inputs(), together).sum()
        with ledger_of(model) as ledger:
            loss.backward()
        for_input, for_weights = ledger.of(Kind.MATMUL)
        assert for_input.reads["weights"] == OPERAND
        assert for_weights.op == uses
        [written] = ledger.written("gradients")
        assert (written.op, written.written_bytes, written.allocated_bytes) == (uses, OPERAND, 0)
        assert [e.writes["biases"] for e in ledger.written("biases")] == [BIASES]
        assert not [entry for entry in ledger.of(Kind.COPY) if entry.reads.get("gradients")]
    assert calls(model) == (2, 0, 2, 0)


def test_gradients_apart_are_a_product_per_member_and_no_more_memory():
    _, model = pair()
    loss = model(inputs(), apart)
    with ledger_of(model) as ledger:
        loss.backward()
    assert len(ledger.of(Kind.MATMUL)) == 6
    sizes = [rows * COLUMNS * 8 for rows in ROWS.values()]
    assert [entry.written_bytes for entry in ledger.written("gradients")] == sizes
    of_inputs = inputs().nbytes
    products = [entry.allocated_bytes for entry in ledger.of(Kind.MATMUL)]
    assert sorted(products) == [0, 0, 0, 0, 0, of_inputs]  # the input's gradient adds up in place
    assert calls(model) == (1, 0, 0, 3)


@given(
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    shift=st.integers(0, 2),
    gap=st.integers(0, 1),
    batch=st.sampled_from([(), (2,), (1, 3), (2, 3)]),
    transposed=st.booleans(),
)
@settings(deadline=None)
def test_columns_of_one_buffer_are_found_and_others_are_not(rows, shift, gap, batch, transposed):
    width = shift + sum(rows) + gap * len(rows)
    buffer = torch.randn(*batch, width)
    if transposed and batch:
        buffer = torch.randn(width, *batch).movedim(0, -1)
    pieces, start = [], shift
    for count in rows:
        pieces.append(buffer[..., start : start + count])
        start += count + gap
    whole = side_by_side(pieces)
    if gap and len(rows) > 1:
        assert whole is None
        return
    assert torch.equal(whole, torch.cat(pieces, -1))
    assert whole.data_ptr() == pieces[0].data_ptr()
    if len(rows) > 1:
        assert side_by_side([pieces[0].clone(), *pieces[1:]]) is None
        assert side_by_side([*pieces[1:], pieces[0]]) is None


# The rule


def twice(layers, x):
    return sum(layers[name](x).tanh().sum() for name in "aabca")


def some(layers, x):
    return layers["c"](x).tanh().sum()


def no_gradient(layers, x):
    return layers["a"](x).tanh().sum() + layers["b"](x).detach().sum()


def interleaved(layers, x):
    other = torch.tanh(x)
    return sum(layers[n](y).tanh().sum() for n, y in [("a", x), ("b", other), ("b", x), ("c", x)])


def changed_between(layers, x):
    x = x * 1.0
    first = layers["a"](x).sum()  # nothing saves x but what the engine checks
    return first + layers["b"](x.clone().mul_(2.0)).tanh().sum()


def in_place(layers, x):
    outputs = {name: layers[name](x) for name in "abc"}
    outputs["a"][..., ::2].mul_(3.0)
    outputs["c"].add_(outputs["a"][..., :3])
    return outputs["a"].tanh().sum() + outputs["b"].tanh().sum() + outputs["c"].tanh().sum()


def vectors(layers, x):
    return sum(layers[n](row).tanh().sum() for row in x[0] for n in "abc")


def one_more(layers, x):
    return together(layers, x).sum() + layers["a"](x).tanh().sum()  # so "a" has gradients already


def empty(layers, x):
    return together(layers, x[:0])


def one_of_rows(layers, x):
    return together(layers, x.transpose(0, 1)[:, 1:])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("use", "counted"),
    [
        (together, (2, 0, 2, 0)),
        (apart, (2, 0, 0, 6)),
        (twice, (2, 4, 0, 10)),
        (some, (2, 0, 0, 2)),
        (no_gradient, (2, 0, 0, 2)),
        (interleaved, (6, 0, 0, 8)),
        (changed_between, (4, 0, 0, 4)),
        (in_place, (2, 0, 0, 6)),
        (vectors, (6, 0, 0, 18)),
        (one_more, (2, 2, 1, 5)),
        (empty, (2, 0, 2, 0)),
        (one_of_rows, (2, 0, 2, 0)),
    ],
)
def test_results_are_those_of_plain_layers_however_members_are_called(use, counted, bias):
    plain, packed = pair(bias)
    check_same(plain, packed, use)
    assert calls(packed) == counted


def test_a_tensor_that_changed_is_another_one():
    plain, packed = pair()
    x = inputs(requires_grad=False)
    with torch.no_grad():
        packed.layers["a"](x)
        x.add_(1.0)
        torch.testing.assert_close(packed.layers["b"](x), plain.layers["b"](x))
    assert calls(packed)[:2] == (2, 0)


def test_weights_that_changed_give_new_outputs():
    plain, packed = pair()
    x = inputs(requires_grad=False)
    with torch.no_grad():
        packed.layers["a"](x)
    with packed.unsharded("layers.b.*") as full, torch.no_grad():
        full["layers.b.weight"].mul_(2.0)
        plain.layers["b"].weight.mul_(2.0)
    with torch.no_grad():
        torch.testing.assert_close(packed.layers["b"](x), plain.layers["b"](x))


def test_outputs_without_a_graph_are_not_handed_to_who_wants_one():
    _, packed = pair()
    x = inputs(requires_grad=False)
    with torch.no_grad():
        assert not packed.layers["a"](x).requires_grad
    assert packed.layers["b"](x).requires_grad
    with torch.no_grad():
        assert not packed.layers["c"](x).requires_grad
    assert calls(packed)[:2] == (3, 0)


def test_inputs_and_outputs_are_freed_with_those_who_use_them():
    _, packed = pair()
    x = inputs(requires_grad=False)
    seen = weakref.ref(x)
    with torch.no_grad():
        packed(x, some)  # outputs of the others wait
        assert packed._sharded.packs[0]._open is None
        packed.layers["a"](x)
    del x
    gc.collect()
    assert seen() is None


def test_an_error_between_calls_leaves_nothing_behind():
    def stumble(layers, x):
        layers["a"](x)
        raise KeyError("stumbled")

    _, packed = pair()
    with pytest.raises(KeyError, match="stumbled"):
        packed(inputs(), stumble)
    assert packed._sharded.packs[0]._open is None
