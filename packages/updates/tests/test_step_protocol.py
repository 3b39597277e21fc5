"""One step: finalize, decide, begin, every stage, commit, end; or nothing at all."""

import copy

import pytest
import torch

from sshsdp_updates import SGD, AdamW, ShardedOptimizer


def bits(ours):
    """Everything that a skipped step must leave as it is."""
    states = [optimizer.state_dict()["state"] for optimizer in ours.optimizers]
    weights = [item.main_weight.clone() for lists in ours.lists for item in lists]
    return [w.view(torch.int32) for w in weights], copy.deepcopy(states)


def same(first, second):
    weights = all(map(torch.equal, first[0], second[0]))
    states = all(
        torch.equal(a[name][field], b[name][field])
        for a, b in zip(first[1], second[1], strict=True)
        for name in a
        for field in a[name]
    )
    return weights and states


def trained(cluster, **options):
    tensors = {"a": torch.randn(9), "b": torch.randn(6)}
    ours = cluster([(AdamW(lr=0.1), tensors)], world=2, **options)
    ours.set_gradients(tensors, {"a": 9, "b": 6})
    ours.run(lambda optimizer: optimizer.step())
    return ours


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_nonfinite_gradient_anywhere_skips_the_step_everywhere(cluster, value):
    ours = trained(cluster)
    before = bits(ours)
    bad = torch.ones(9)
    bad[-1] = value
    ours.set_gradients({"a": bad, "b": torch.ones(6)}, {"a": 9, "b": 6})
    for steps in ours.steps:
        steps.calls.clear()
    ours.run(lambda optimizer: optimizer.step())
    assert same(before, bits(ours))
    assert [steps.calls for steps in ours.steps] == [["finalize"]] * 2
    assert [(o.skipped_steps, o.last_step_skipped) for o in ours.optimizers] == [(1, True)] * 2


def test_the_step_after_a_skipped_one_is_as_if_it_had_not_been(cluster):
    tensors = {"a": torch.randn(9)}
    plain, skipping = (cluster([(AdamW(lr=0.1), tensors)]) for _ in range(2))
    for ours, values in ((plain, [1.0, 2.0]), (skipping, [1.0, float("nan"), 2.0])):
        for value in values:
            ours.set_gradients({"a": torch.full((9,), value)}, {"a": 9})
            ours.run(lambda optimizer: optimizer.step())
    assert same(bits(plain), bits(skipping))
    assert not skipping.optimizers[0].last_step_skipped


def test_without_the_check_nonfinite_gradients_are_applied_and_nothing_is_measured(cluster):
    ours = trained(cluster, skip_nonfinite=False)
    ours.set_gradients({"a": torch.full((9,), torch.nan), "b": None}, {"a": 9, "b": 6})
    ours.run(lambda optimizer: optimizer.step())
    assert ours.weight("a", 9).isnan().all()
    assert ours.reducer.calls == 0


def test_order_of_a_step(cluster):
    ours = cluster([(SGD(), {"a": torch.zeros(3)})])
    ours.set_gradients({"a": torch.ones(3)}, {"a": 3})
    ours.optimizers[0].step()
    assert ours.steps[0].calls == ["finalize", "begin", "end"]


def test_a_failing_stage_commits_no_count_and_never_ends_the_update(cluster, monkeypatch):
    ours = cluster([(SGD(), {"a": torch.zeros(3)}), (AdamW(), {"b": torch.zeros(3)})])
    ours.set_gradients({"a": torch.ones(3), "b": torch.ones(3)}, {"a": 3, "b": 3})

    def broken(*args, **kwargs):
        raise RuntimeError("broken kernel")

    monkeypatch.setattr(torch, "_fused_adamw_", broken)
    with pytest.raises(RuntimeError, match="broken kernel"):
        ours.optimizers[0].step()
    state = ours.optimizers[0].state_dict()["state"]
    assert [state[name]["step"].item() for name in "ab"] == [0, 0]
    assert ours.steps[0].calls == ["finalize", "begin"]


def test_illegal_hyperparameter_changes_nothing(cluster):
    ours = trained(cluster)
    before = bits(ours)
    (first, _) = ours.optimizers
    first.param_groups[0]["lr"] = float("nan")
    with pytest.raises(ValueError, match=r"expected a lr >= 0 and finite, got lr=nan"):
        first.step()
    assert same(before, bits(ours))


def test_zero_grad_asks_the_owner_if_it_can(cluster):
    ours = cluster([(SGD(), {"a": torch.zeros(3)})])
    ours.set_gradients({"a": torch.ones(3)}, {"a": 3})
    ours.steps[0].zero_grad = lambda: ours.steps[0].calls.append("zero_grad")
    ours.optimizers[0].zero_grad()
    assert ours.steps[0].calls == ["zero_grad"]
    assert torch.equal(ours.gradient("a", 3), torch.ones(3))


def test_zero_grad_alone_fills_members_and_not_padding(cluster):
    ours = cluster([(SGD(), {"a": torch.zeros(3), "b": torch.zeros(2)})], align=4)
    ours.set_gradients({"a": torch.ones(3), "b": None}, {"a": 3, "b": 2})
    ours.optimizers[0].zero_grad()
    assert torch.equal(ours.gradient("a", 3), torch.zeros(3))
    assert torch.equal(ours.gradient("b", 2), torch.zeros(2))
    assert ours.padding_is_untouched()


def test_stand_alone_every_member_is_used(cluster):
    ours = cluster([(SGD(lr=1.0), {"a": torch.zeros(3)})])
    ours.set_gradients({"a": torch.ones(3)}, {"a": 3})
    optimizer = ShardedOptimizer(ours.lists[0])
    optimizer.step()
    assert torch.equal(ours.weight("a", 3), torch.full((3,), -1.0))
