"""What surrounds a shared product: checkpointing, threads, autocast, transforms, late gradients."""

import copy
import threading
from dataclasses import astuple

import pytest
import torch
from testing.ranks import run_ranks
from torch import nn
from torch.utils.checkpoint import checkpoint

from sshsdp_fsdp_runtime import Pack, Sharding, fully_shard
from sshsdp_shardchain import Degrees
from sshsdp_zerosm import connect

from .co_calls import (
    COLUMNS,
    ROWS,
    Holder,
    calls,
    check_gradients,
    check_same,
    inputs,
    pair,
    together,
)


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
    # Not "eager", which calls torch's functions by name again in torch 2.11.
    packed(inputs(), torch.compile(together, backend="aot_eager")).sum().backward()
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
