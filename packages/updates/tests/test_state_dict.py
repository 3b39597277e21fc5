"""State dicts go by name; what differs is listed and nothing is loaded."""

import copy
import io

import pytest
import torch
from torch.optim.lr_scheduler import LinearLR

from sshsdp_updates import SGD, AdamW

NUMELS = {"a": 9, "b": 6, "c": 1}


def build(cluster, world=2, order="abc", dtype=torch.float32, lr=0.1):
    random = torch.Generator().manual_seed(0)
    tensors = {n: torch.randn(NUMELS[n], generator=random, dtype=dtype) for n in "abc"}
    adamw = {n: tensors[n] for n in order if n != "c"}
    return cluster([(AdamW(lr=lr), adamw), (SGD(0.1, 0.9), {"c": tensors["c"]})], world=world)


def train(ours, steps, seed=0):
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        gradients = {n: torch.randn(k, generator=random) for n, k in NUMELS.items()}
        ours.set_gradients(gradients, NUMELS)
        ours.run(lambda optimizer: optimizer.step())


def stored(ours):
    """Through a file, as a checkpoint would."""
    result = []
    for optimizer in ours.optimizers:
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        result.append(torch.load(file))
    return result


def restore(ours, saved):
    for optimizer, state in zip(ours.optimizers, saved, strict=True):
        optimizer.load_state_dict(state)


def test_resumed_training_is_bit_equal_to_uninterrupted_training(cluster):
    whole, first, second = (build(cluster) for _ in range(3))
    train(whole, 3, seed=1)
    train(whole, 2, seed=2)
    train(first, 3, seed=1)
    for name, numel in NUMELS.items():
        second.scatter("main_weight", name, first.weight(name, numel))
    restore(second, stored(first))
    train(second, 2, seed=2)
    for name, numel in NUMELS.items():
        assert torch.equal(whole.weight(name, numel), second.weight(name, numel))


def test_tensors_are_copied_in_place(cluster):
    ours = build(cluster)
    addresses = [item.tensor.data_ptr() for item in ours.optimizers[0].fields()]
    saved = stored(ours)
    saved[0]["state"]["a"]["exp_avg"].fill_(3.0)
    restore(ours, saved)
    found = list(ours.optimizers[0].fields())
    assert [item.tensor.data_ptr() for item in found] == addresses
    assert (found[0].tensor == 3.0).all()


def test_loaded_values_are_not_shared_with_the_state_dict(cluster):
    ours = build(cluster)
    saved = stored(ours)
    saved[0]["param_groups"][0]["lr"] = torch.tensor(0.5)
    restore(ours, saved)
    saved[0]["param_groups"][0]["lr"].fill_(9.0)
    assert ours.optimizers[0].param_groups[0]["lr"] == 0.5


def test_hyperparameters_are_restored_where_this_rank_holds_nothing(cluster):
    ours, other = build(cluster), build(cluster)
    for optimizer in other.optimizers:
        optimizer.param_groups[1]["lr"] = 0.75  # of "c", whose one element rank 1 does not have
    restore(ours, stored(other))
    assert ours.lists[1][1].members[0].fragment.empty
    assert [o.param_groups[1]["lr"] for o in ours.optimizers] == [0.75, 0.75]


def test_groups_and_members_are_matched_by_name_not_by_position(cluster):
    ours, other = build(cluster, world=1), build(cluster, world=1, order="ba", lr=0.25)
    train(other, 2)
    saved = stored(other)
    saved[0]["param_groups"].reverse()
    restore(ours, saved)
    for name in NUMELS:
        loaded, original = (o.optimizers[0].state_dict()["state"][name] for o in (ours, other))
        assert all(torch.equal(loaded[field], original[field]) for field in original)
    assert [g["lr"] for g in ours.optimizers[0].param_groups] == [0.25, 0.1]


def test_a_schedules_own_entries_travel_with_the_group(cluster):
    ours, other = build(cluster, world=1), build(cluster, world=1)
    LinearLR(other.optimizers[0])
    restore(ours, stored(other))
    assert ours.optimizers[0].param_groups[0]["initial_lr"] == 0.1


def damage_state(saved):
    state = saved["state"]
    state["zz"] = state.pop("b")
    del state["c"]["momentum_buffer"]
    state["a"]["exp_avg"] = state["a"]["exp_avg"].double()
    state["a"]["exp_avg_sq"] = torch.zeros(2)
    state["a"]["step"] = 3.0


def damage_groups(saved):
    first, second = saved["param_groups"]
    first["params"] = ["a", "zz"]
    del second["nesterov"]


def unchanged_after_refusal(ours, saved, *messages):
    before = copy.deepcopy(ours.optimizers[0].state_dict())
    with pytest.raises(ValueError, match="nothing was loaded") as caught:
        ours.optimizers[0].load_state_dict(saved)
    for message in messages:
        assert message in str(caught.value)
    after = ours.optimizers[0].state_dict()
    assert after["param_groups"] == before["param_groups"]
    for name, fields in before["state"].items():
        assert all(torch.equal(after["state"][name][f], t) for f, t in fields.items())


def test_every_difference_in_state_is_in_one_error(cluster):
    ours, other = build(cluster, world=1), build(cluster, world=1)
    train(other, 1)
    (saved,) = stored(other)
    damage_state(saved)
    unchanged_after_refusal(
        ours,
        saved,
        "parameters: missing 'b'",
        "parameters: unexpected 'zz'",
        "state of 'c': missing 'momentum_buffer'",
        "exp_avg of 'a': expected shape (9,) of torch.float32, got shape (9,) of torch.float64",
        "exp_avg_sq of 'a': expected shape (9,) of torch.float32, got shape (2,)",
        "step of 'a': expected shape () of torch.float32, got float",
    )


def test_every_difference_in_groups_is_in_one_error(cluster):
    ours, other = build(cluster, world=1), build(cluster, world=1)
    train(other, 1)
    (saved,) = stored(other)
    damage_groups(saved)
    unchanged_after_refusal(
        ours,
        saved,
        "param group of 'a', 'b': expected a group of exactly these parameters, got none",
        "param group of 'c': missing hyperparameters 'nesterov'",
    )


def test_another_rule_an_illegal_value_and_an_extra_group_are_refused(cluster):
    ours, other = build(cluster, world=1), build(cluster, world=1)
    (saved,) = stored(other)
    saved["param_groups"][0]["rule"] = "lion"
    saved["param_groups"][1]["lr"] = -1.0
    saved["param_groups"].append({"rule": "sgd", "params": ["q"]})
    unchanged_after_refusal(
        ours,
        saved,
        "param group of 'a', 'b': expected rule 'adamw', got 'lion'",
        "param group of 'c': expected a lr >= 0 and finite, got lr=-1.0",
        "expected 2 param groups, got 3",
    )


def test_the_state_of_another_rank_is_refused(cluster):
    ours = build(cluster, world=2)
    unchanged_after_refusal(ours, stored(ours)[1], "exp_avg of 'a': expected shape (8,)")


def test_something_else_is_refused(cluster):
    with pytest.raises(ValueError, match=r"expected a state dict with 'state'.* got keys 'model'"):
        build(cluster).optimizers[0].load_state_dict({"model": {}})


def test_a_long_list_of_names_is_cut(cluster):
    ours = build(cluster, world=1)
    (saved,) = stored(ours)
    saved["state"] |= {f"x{i}": {} for i in range(100)}
    unchanged_after_refusal(ours, saved, "'x7' and 92 more")


def test_state_dict_hooks_run(cluster):
    ours = build(cluster, world=1)
    (optimizer,) = ours.optimizers
    seen = []
    optimizer.register_state_dict_pre_hook(lambda _: seen.append("save"))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "extra": 1})
    optimizer.register_load_state_dict_pre_hook(lambda _, s: {k: s[k] for k in s if k != "extra"})
    optimizer.register_load_state_dict_post_hook(lambda _: seen.append("load"))
    saved = optimizer.state_dict()
    assert saved["extra"] == 1
    optimizer.load_state_dict(saved)
    assert seen == ["save", "load"]
