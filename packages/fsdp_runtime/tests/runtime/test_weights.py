"""Full weights: there when they are read, absent otherwise, open to edits in one place only."""

import dataclasses

import pytest
import torch
from testing.models import TiedModel

from sshsdp_fsdp_runtime import Cast
from sshsdp_fsdp_runtime.runtime import FragmentTensor

from .scenes import ids, on_ranks

UP = "layers.0.up.weight"
POISONED = {"form": "private", "poison": True}


def plain():
    torch.manual_seed(0)
    return TiedModel().double()


def gathered(model):
    return [group.plan.label for group in model._sharded.weights.values() if group.ready]


def values(model):
    return {name: value.clone() for name, value in model.full_state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def test_an_absent_weight_keeps_its_shape_and_reads_as_nan():
    def scene(_rank, model):
        shapes = {name: (p.shape, p.dtype) for name, p in model.named_parameters()}
        shown = [
            p.data.isnan().all().item() and not p.data.is_contiguous()
            for p in model.layers[0].up.parameters()
        ]
        with pytest.raises(RuntimeError, match="single memory location"):
            model.layers[0].up.weight.data.mul_(2)
        return shapes, shown

    expected = {name: (p.shape, p.dtype) for name, p in plain().named_parameters()}
    assert on_ranks(2, scene, form="private") == [(expected, [True, True])] * 2


def test_nothing_stays_gathered_after_forward_backward_and_step():
    def scene(_rank, model):
        lists = [b.weights.tensor for b in model._sharded.buffers.atoms.values()]

        def released():
            return gathered(model) == [] and all(weights.isnan().all() for weights in lists)

        with torch.no_grad():
            model(ids())
        seen = [released()]
        model(ids()).sum().backward()
        seen.append(released())
        model.optimizer.step()
        return [*seen, released()]

    assert on_ranks(2, scene, **POISONED) == [[True] * 3] * 2


@pytest.mark.parametrize("options", [{"form": "shared"}, POISONED], ids=["shared", "private"])
def test_a_submodule_called_directly_has_its_weights(options):
    x = torch.linspace(-1, 1, 10, dtype=torch.float64).view(2, 5)
    model = plain()
    expected = model.layers[1](x), model.layers[0].up(x), x @ model.layers[2].up.weight.t()

    def scene(_rank, ours):
        with torch.no_grad():
            return ours.layers[1](x), ours.layers[0].up(x), x @ ours.layers[2].up.weight.t()

    for results in on_ranks(2, scene, **options):
        for result, value in zip(results, expected, strict=True):
            torch.testing.assert_close(result, value)


@pytest.mark.parametrize("cast", [(), (Cast("**", torch.bfloat16),)], ids=["fp64", "bf16"])
@pytest.mark.parametrize("form", ["shared", "private"])
def test_edits_of_full_values_are_seen_by_the_next_forward(form, cast):
    names = [f"layers.{index}.up.weight" for index in range(3)]
    source = plain()
    before = {name: source.get_parameter(name).detach().clone() for name in names}

    def scene(_rank, model):
        x = torch.ones(1, 5, dtype=torch.bfloat16 if cast else torch.float64)
        with torch.no_grad():
            model(ids())
            model.layers[0].up(x)  # gathered, and kept: what is read outside of its group's forward
        with model.unsharded("layers.*.up.weight") as full:
            assert list(full) == names
            read = {name: value.clone() for name, value in full.items()}
            for value in full.values():
                value.copy_(torch.arange(35.0).view(7, 5))
        with torch.no_grad():
            after = model.layers[0].up(x) - model.layers[0].up(torch.zeros_like(x))
        with model.unsharded(UP, write=False) as full:
            return read, after.double(), full[UP].clone()

    edited = torch.arange(35.0).view(7, 5).double()
    for read, after, value in on_ranks(2, scene, form=form, formats=cast, model=source):
        for name in names:
            assert torch.equal(read[name], before[name])
        assert torch.equal(value, edited)
        torch.testing.assert_close(after, edited.sum(1)[None], rtol=2e-2 if cast else 1e-9, atol=1)


@pytest.mark.parametrize("form", ["shared", "private"])
def test_without_writing_or_after_an_error_nothing_changes(form):
    def scene(_rank, model):
        before = values(model)
        with model.unsharded(write=False) as full:
            full[UP].zero_()
        kept = same(values(model), before)
        with pytest.raises(ZeroDivisionError), model.unsharded() as full:  # noqa: PT012
            full[UP].zero_()
            raise ZeroDivisionError
        model(ids())
        return kept, same(values(model), before)

    assert on_ranks(2, scene, form=form) == [(True, True)] * 2


def test_a_pattern_that_names_nothing_is_refused():
    def scene(_rank, model):
        with (
            pytest.raises(ValueError, match=r"pattern that names parameters, got 'layers\.9\.\*'"),
            model.unsharded(UP, "layers.9.*"),
        ):
            pass

    on_ranks(1, scene)


@pytest.mark.parametrize("form", ["shared", "private"])
def test_a_plain_state_dict_is_taken_and_given_back(form):
    torch.manual_seed(5)
    other = TiedModel().double()
    other.shift.mul_(3)
    wanted = other.state_dict()

    def scene(_rank, model):
        model(ids())
        model.load_state_dict(wanted)
        with torch.no_grad():
            return values(model), model(ids())

    for state, scores in on_ranks(2, scene, form=form):
        assert sorted(state) == sorted(wanted)  # every name of a tied parameter, and the buffer
        assert same(state, dict(wanted))
        torch.testing.assert_close(scores, other(ids()).detach())


def test_a_state_dict_of_another_model_is_refused_whole():
    def scene(_rank, model):
        before = values(model)
        wrong = {name: value + 1 for name, value in before.items()}
        del wrong["gain"]
        wrong["extra"] = torch.ones(1)
        wrong[UP] = wrong[UP].t()
        with pytest.raises(ValueError, match="expected a full state dict") as caught:
            model.load_state_dict(wrong)
        with pytest.raises(ValueError, match="a sharded value for 'gain'"):
            model.load_state_dict(model.state_dict())
        return str(caught.value), same(values(model), before)

    for text, kept in on_ranks(2, scene):
        assert "missing 'gain'; unexpected 'extra'" in text
        assert f"'{UP}' of shape (5, 7) instead of (7, 5)" in text
        assert kept


def test_the_sharded_state_dict_costs_no_communication():
    def scene(rank, model):
        before = dataclasses.asdict(model.transport.counters)
        state = model.state_dict() if rank.rank == 0 else {}  # the other rank isn't needed
        assert dataclasses.asdict(model.transport.counters) == before
        assert all(type(value) is FragmentTensor for value in state.values())
        model.transport.barrier()
        return [(name, value.shape) for name, value in model.state_dict().items()]

    expected = [(name, value.shape) for name, value in plain().state_dict().items()]
    for shapes in on_ranks(2, scene):
        assert sorted(shapes) == sorted(expected)


def test_a_module_around_the_model_has_its_sharded_values_in_its_state_dict():
    def scene(_rank, model):
        around = torch.nn.Sequential(torch.nn.Linear(1, 1), model)
        own, inside = around.state_dict(prefix="all."), model.state_dict()
        values = {name.removeprefix("all.1."): v for name, v in own.items() if ".1." in name}
        assert list(values) == list(inside)
        assert all(type(value) is FragmentTensor for value in values.values())
        for name, value in inside.items():
            assert values[name].local.data_ptr() == value.local.data_ptr()
        return list(own)[:2]

    assert on_ranks(2, scene) == [["all.0.weight", "all.0.bias"]] * 2
