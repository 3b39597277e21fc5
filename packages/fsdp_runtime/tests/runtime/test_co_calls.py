"""When members of a pack share a product, seen from outside, and that nothing depends on it."""

import copy
import gc
import threading
import weakref
from dataclasses import astuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.ledger import Kind, Ledger
from testing.ranks import run_ranks
from torch import nn
from torch.utils.checkpoint import checkpoint

from sshsdp_fsdp_runtime import Pack, Sharding, fully_shard
from sshsdp_fsdp_runtime.runtime.packed_linear import side_by_side
from sshsdp_shardchain import Degrees
from sshsdp_zerosm import connect

COLUMNS, ROWS = 5, {"a": 6, "b": 2, "c": 3}
TOTAL = sum(ROWS.values())
OPERAND, BIASES = TOTAL * COLUMNS * 8, TOTAL * 8  # bytes


class Holder(nn.Module):
    """Three layers; `use` says what is done with them."""

    def __init__(self, bias=True):
        super().__init__()
        self.layers = nn.ModuleDict({n: nn.Linear(COLUMNS, r, bias) for n, r in ROWS.items()})

    def forward(self, x, use):
        return use(self.layers, x)


def pair(bias=True, **options):
    """The same layers, plain and packed."""
    torch.manual_seed(0)
    plain = Holder(bias).double()
    return plain, fully_shard(copy.deepcopy(plain), packs=[Pack("layers", list(ROWS))], **options)


def inputs(requires_grad=True):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, COLUMNS, dtype=torch.float64, generator=generator)
    return x.requires_grad_(requires_grad)


def calls(model):
    """Fused and sliced calls, forward and backward."""
    [counted] = model.pack_calls().values()
    return astuple(counted)


def together(layers, x):
    return torch.cat([layers[name](x) for name in "abc"], -1).square()


def apart(layers, x):
    return sum((layers[name](x) * (index + 1)).tanh().sum() for index, name in enumerate("bca"))


def check_same(plain, packed, use, passes=2):
    """Outputs, and gradients of inputs and parameters, of some passes."""
    inner, outer = inputs(), inputs()
    for _ in range(passes):
        expected, found = plain(outer, use), packed(inner, use)
        torch.testing.assert_close(found, expected)
        expected.sum().backward()
        found.sum().backward()
    check_gradients(plain, packed)
    torch.testing.assert_close(inner.grad, outer.grad)


def check_gradients(plain, packed):
    packed.finalize_gradients()
    shown = dict(packed.named_parameters())
    for name, parameter in plain.named_parameters():
        used = packed._sharded.gradients.used(name)
        assert used == (parameter.grad is not None)
        if used:
            ours = shown[name].grad.local.view(parameter.shape)
            torch.testing.assert_close(ours, parameter.grad, rtol=1e-12, atol=1e-13)


def ledger_of(model):
    pack = model._sharded.packs[0]
    ranges = {"weights": pack._weight.value, "gradients": pack._weight.gradient}
    return Ledger({**ranges, "biases": pack._bias.gradient})


# Memory operations


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


@pytest.mark.parametrize("reentrant", [True, False])
def test_outputs_do_not_cross_the_border_of_a_checkpointed_region(reentrant):
    def use(layers, x):
        def region(x):
            return layers["b"](x).tanh() * layers["b"](x)

        def other(x):
            return (layers["c"](x) * layers["a"](x).sum()).tanh()

        first = layers["a"](x).tanh().sum()
        inner = sum(checkpoint(f, x, use_reentrant=reentrant).sum() for f in (region, other))
        return first + inner + layers["c"](x).tanh().sum()

    check_same(*pair(), use)


def test_a_whole_product_inside_a_checkpointed_region_is_recomputed_as_one():
    def use(layers, x):
        return checkpoint(together, layers, x, use_reentrant=False)

    plain, packed = pair()
    check_same(plain, packed, use)
    assert calls(packed) == (4, 0, 2, 0)


def test_threads_get_what_they_asked_for():
    plain, packed = pair()
    xs = [torch.randn(4, COLUMNS, dtype=torch.float64) for _ in range(2)]
    expected = [{n: plain.layers[n](x) for n in "abc"} for x in xs]
    faults = []

    def work(index):
        with torch.no_grad():
            for _ in range(50):
                for name in "abc":
                    found = packed.layers[name](xs[index % 2])
                    if not torch.allclose(found, expected[index % 2][name]):
                        faults.append((index, name))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


# Where the plain path is taken


def test_under_autocast_to_another_dtype_members_are_computed_alone():
    plain, packed = pair()
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = packed(inputs(), together), plain(inputs(), together)
    assert torch.equal(found, expected)
    assert calls(packed)[:2] == (0, 3)


def test_in_inference_mode_members_are_computed_alone():
    plain, packed = pair()
    with torch.inference_mode():
        x = inputs(False).clone()
        torch.testing.assert_close(packed(x, together), plain(x, together))
    assert calls(packed)[:2] == (0, 3)


def test_functional_transforms_see_ordinary_operations():
    plain, packed = pair()

    def gradient(model):
        return torch.func.vmap(torch.func.grad(lambda x: model(x, together).sum()))(inputs(False))

    torch.testing.assert_close(gradient(packed), gradient(plain))
    assert calls(packed)[:2] == (0, 3)


def test_compiled_code_takes_the_plain_path():
    plain, packed = pair()
    packed(inputs(), torch.compile(together, backend="eager")).sum().backward()
    plain(inputs(), together).sum().backward()
    check_gradients(plain, packed)
    assert calls(packed) == (0, 0, 0, 0)


def test_another_bias_than_the_member_s_is_not_taken_from_the_pack():
    plain, packed = pair()

    def use(layers, x):
        return sum(
            nn.functional.linear(x, layers[name].weight, bias).tanh().sum()
            for name, bias in [("a", None), ("b", layers["b"].bias), ("c", layers["c"].bias * 2)]
        )

    check_same(plain, packed, use)


# Gradients that are wanted, late, or part of a graph


def test_only_the_inputs_that_backward_is_asked_for_get_gradients():
    _, packed = pair()
    x = inputs()
    packed(x, together).sum().backward(inputs=[x, packed.layers["b"].weight])
    packed.finalize_gradients()
    used = {name for name, _ in packed.named_parameters() if packed._sharded.gradients.used(name)}
    assert used == {"layers.b.weight"}
    assert x.grad is not None
    with pytest.raises(RuntimeError, match="expected gradients of sharded parameters from"):
        torch.autograd.grad(packed(x, together).sum(), packed.layers["b"].weight)


def test_a_member_that_is_frozen_later_gets_no_gradient():
    plain, packed = pair()
    for model in (plain, packed):
        model.layers["b"].requires_grad_(False)
    check_same(plain, packed, together)


def gradients_on_two_ranks(model, run, **options):
    """Pieces of all gradients after ``run(model)`` on every rank, and the calls of the packs."""

    def main(rank):
        with connect(rank.rank, rank.world, rank.store, timeout=60) as transport:
            ours = fully_shard(
                copy.deepcopy(model),
                sharding=[Sharding("**", Degrees(2, 2, 2))],
                groups=["layers"],
                transport=transport,
                **options,
            )
            run(ours)
            ours.finalize_gradients()
            found = [(p.grad.fragment.start, p.grad.local.clone()) for p in ours.parameters()]
            counted = [astuple(calls) for calls in ours.pack_calls().values()]
            ours.close()
        return found, counted

    return run_ranks(main, 2, timeout=120)


def assert_pieces(pieces, model):
    for (start, local), parameter in zip(pieces, model.parameters(), strict=True):
        whole = parameter.grad.flatten()[start : start + local.numel()]
        torch.testing.assert_close(local, whole, rtol=1e-12, atol=1e-13)


def test_gradients_that_arrive_after_the_reduction_are_not_lost():
    def use(layers, x):
        def region(x):
            return together(layers, x)

        return sum(checkpoint(region, x * f, use_reentrant=True).sum() for f in (1.0, 2.0))

    def run(model):
        model(inputs(), use).backward()

    torch.manual_seed(0)
    plain = Holder().double()
    results = gradients_on_two_ranks(plain, run, packs=[Pack("layers", list(ROWS))])
    run(plain)
    for pieces, [counted] in results:
        assert_pieces(pieces, plain)
        assert counted == (4, 0, 1, 3)  # one region is in time, the other adds where late ones go


@pytest.mark.filterwarnings("ignore:Using backward")  # with create_graph=True, which is the point
@pytest.mark.parametrize("form", ["shared", "private"])
@pytest.mark.parametrize("packs", [[Pack("layers", list(ROWS))], []], ids=["packed", "apart"])
def test_second_derivatives_are_those_of_plain_layers(form, packs):
    def run(model):
        x = inputs()
        model(x, together).sum().backward(create_graph=True)
        x.grad.square().sum().backward()

    torch.manual_seed(0)
    plain = Holder().double()
    options = {"packs": packs, "form": form, "poison": form == "private"}
    results = gradients_on_two_ranks(plain, run, **options)
    run(plain)
    for pieces, _ in results:
        assert_pieces(pieces, plain)


# What torch keeps private


def test_torch_tells_which_saved_tensor_hooks_are_in_force():
    """Should this go: end the sharing of products where a checkpointed region begins."""
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        first = torch._C._autograd._top_saved_tensors_default_hooks(False)
        assert first == torch._C._autograd._top_saved_tensors_default_hooks(False)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            assert first != torch._C._autograd._top_saved_tensors_default_hooks(False)
