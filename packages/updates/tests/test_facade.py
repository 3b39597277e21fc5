"""What frameworks expect of a torch optimizer, and what is refused."""

import copy
import pickle

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from sshsdp_updates import SGD, AdamW, ShardedOptimizer


def two_groups(cluster):
    shared = AdamW(lr=0.1)
    zeros = {name: torch.zeros(3) for name in "abc"}
    return cluster(
        [
            (shared, {"a": zeros["a"]}),
            (SGD(lr=0.5), {"b": zeros["b"]}),
            (shared, {"c": zeros["c"]}),
        ]
    )


def test_one_param_group_per_rule_object_in_order_of_first_appearance(cluster):
    ours = two_groups(cluster)
    first, second = ours.optimizers[0].param_groups
    assert (first["rule"], first["param_names"], first["lr"]) == ("adamw", ["a", "c"], 0.1)
    assert (second["rule"], second["param_names"], second["lr"]) == ("sgd", ["b"], 0.5)


def test_equal_rules_that_are_two_objects_are_two_groups(cluster):
    zeros = torch.zeros(3)
    ours = cluster([(AdamW(), {"a": zeros}), (AdamW(), {"b": zeros})])
    assert len(ours.optimizers[0].param_groups) == 2


def test_groups_hold_the_models_own_parameters(cluster):
    ours = two_groups(cluster)
    (first, _) = ours.optimizers[0].param_groups
    assert first["params"][0] is ours.parameters["a"]
    assert set(ours.optimizers[0].state) == set(ours.parameters.values())


def test_state_is_there_before_the_first_step_even_of_empty_fragments(cluster):
    ours = cluster([(AdamW(), {"a": torch.zeros(1)})], world=2)
    for optimizer, numel in zip(ours.optimizers, (1, 0), strict=True):
        state = optimizer.state[ours.parameters["a"]]
        assert state["step"] == 0
        assert state["exp_avg"].shape == (numel,)


def test_tools_that_ask_for_state_cause_no_step(cluster):
    ours = cluster([(AdamW(), {"weight": torch.zeros(3)})])
    model = torch.nn.Module()
    model.weight = ours.parameters["weight"]
    get_optimizer_state_dict(model, ours.optimizers[0])
    assert ours.steps[0].calls == []


def test_closure_runs_with_gradients_on_and_its_loss_is_returned(cluster):
    ours = cluster([(SGD(lr=1.0), {"a": torch.zeros(3)})])

    def closure():
        ours.set_gradients({"a": torch.ones(3)}, {"a": 3})
        assert torch.is_grad_enabled()
        return 7.5

    with torch.no_grad():
        assert ours.optimizers[0].step(closure) == 7.5
    assert torch.equal(ours.weight("a", 3), torch.full((3,), -1.0))


def test_step_hooks_run_around_the_step(cluster):
    ours = cluster([(SGD(lr=1.0), {"a": torch.zeros(3)})])
    ours.set_gradients({"a": torch.ones(3)}, {"a": 3})
    seen = []
    optimizer = ours.optimizers[0]
    optimizer.register_step_pre_hook(lambda *_: seen.append(ours.weight("a", 3)[0].item()))
    optimizer.register_step_post_hook(lambda *_: seen.append(ours.weight("a", 3)[0].item()))
    optimizer.step()
    assert seen == [0.0, -1.0]


def test_later_param_groups_are_refused(cluster):
    ours = two_groups(cluster)
    with pytest.raises(TypeError, match="build a new ShardedOptimizer"):
        ours.optimizers[0].add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    assert len(ours.optimizers[0].param_groups) == 2


def test_grad_scaler_is_refused_and_a_disabled_one_is_not(cluster):
    ours = two_groups(cluster)
    ours.set_gradients({name: torch.ones(3) for name in "abc"}, dict.fromkeys("abc", 3))
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(TypeError, match="got a GradScaler; train in bfloat16 or float32"):
        scaler.step(ours.optimizers[0])
    torch.amp.GradScaler("cpu", enabled=False).step(ours.optimizers[0])
    assert ours.steps[0].calls == ["finalize", "begin", "end"]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(cluster, duplicate):
    with pytest.raises(TypeError, match="got a copy or pickle of one; use state_dict"):
        duplicate(two_groups(cluster).optimizers[0])


def test_state_comes_from_the_given_allocator(cluster):
    given = {}

    def allocate(numel, dtype, name):
        given[name] = torch.full((numel,), torch.nan, dtype=dtype)
        return given[name]

    ours = cluster([(AdamW(), {"a": torch.zeros(3)})], allocate=allocate)
    assert list(given) == ["list0.exp_avg", "list0.exp_avg_sq"]
    state = ours.optimizers[0].state[ours.parameters["a"]]
    assert state["exp_avg"].data_ptr() == given["list0.exp_avg"].data_ptr()
    assert torch.equal(state["exp_avg"], torch.zeros(3))


def test_an_allocator_that_returns_something_else_is_named(cluster):
    with pytest.raises(ValueError, match=r"'list0.exp_avg'.*\(3,\).*got \(1,\)"):
        cluster([(AdamW(), {"a": torch.zeros(3)})], allocate=lambda *_: torch.zeros(1))


def test_fields_are_every_fragment_of_every_state_field(cluster):
    ours = cluster([(AdamW(), {"a": torch.zeros(5), "b": torch.zeros(2)})], world=2)
    for rank, optimizer in enumerate(ours.optimizers):
        found = list(optimizer.fields())
        assert [(f.name, f.field) for f in found] == [
            ("a", "exp_avg"),
            ("a", "exp_avg_sq"),
            ("b", "exp_avg"),
            ("b", "exp_avg_sq"),
        ]
        for item in found:
            live = optimizer.state[ours.parameters[item.name]][item.field]
            assert item.tensor.data_ptr() == live.data_ptr()
            assert (item.fragment.rank, item.fragment.numel) == (rank, item.tensor.numel())
        assert found[0].shape == (5,)


def test_a_world_of_one_needs_no_reducer_and_no_owner(cluster):
    ours = cluster([(SGD(lr=1.0), {"a": torch.zeros(3)})])
    ours.set_gradients({"a": torch.ones(3)}, {"a": 3})
    optimizer = ShardedOptimizer(ours.lists[0])
    assert optimizer.clip_grad_norm_(10.0).item() == pytest.approx(3**0.5)
    optimizer.step()
    assert torch.equal(ours.weight("a", 3), torch.full((3,), -1.0))
