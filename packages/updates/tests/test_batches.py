"""A stage is called once per step count, with slices that are made once."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from sshsdp_updates import Access, Operand, Stage, UpdateRule


@dataclass(frozen=True)
class Recorder(UpdateRule):
    """Adds 1 to the weights; keeps (step, addresses, lengths) of its calls."""

    name: ClassVar[str] = "recorder"
    calls: list = field(default_factory=list)

    def hyperparameters(self):
        return {"lr": 1.0}

    def validate(self, hyperparameters):
        pass

    def state_fields(self):
        return ()

    def stages(self):
        return (Stage("add", self._add, (Operand("main_weight", Access.UPDATE),)),)

    def _add(self, operands, scalars):
        weights = operands["main_weight"]
        for weight in weights:
            weight += 1
        self.calls.append((scalars["step"], [id(w) for w in weights], [len(w) for w in weights]))


def recorded(cluster, lists, **options):
    rule = Recorder()
    ours = cluster([(rule, tensors) for tensors in lists], **options)
    rule.calls.clear()  # those of the check at construction
    return rule, ours


def step(ours, *unused):
    for steps in ours.steps:
        steps.unused = set(unused)
    for lists in ours.lists:
        for item in lists:
            item.main_grad.zero_()
    ours.run(lambda optimizer: optimizer.step())


def test_one_call_handles_all_lists(cluster):
    rule, ours = recorded(
        cluster, [{"a": torch.zeros(3), "b": torch.zeros(4)}, {"c": torch.zeros(5)}]
    )
    step(ours)
    assert [(s, lengths) for s, _, lengths in rule.calls] == [(1, [7, 5])]


def test_slices_are_reused_while_steps_advance_together(cluster):
    rule, ours = recorded(cluster, [{"a": torch.zeros(3)}])
    for _ in range(3):
        step(ours)
    assert [s for s, _, _ in rule.calls] == [1, 2, 3]
    assert len({tuple(ids) for _, ids, _ in rule.calls}) == 1


def test_members_with_other_step_counts_get_their_own_call(cluster):
    rule, ours = recorded(cluster, [{n: torch.zeros(4) for n in "abc"}])
    step(ours, "b")
    step(ours)
    assert sorted((s, lengths) for s, _, lengths in rule.calls) == [
        (1, [4]),  # b, in the second step
        (1, [4, 4]),  # a and c
        (2, [4, 4]),
    ]
    assert torch.equal(ours.weight("b", 4), torch.full((4,), 1.0))
    assert torch.equal(ours.weight("c", 4), torch.full((4,), 2.0))


def test_unused_members_are_not_touched_and_keep_their_count(cluster):
    _, ours = recorded(cluster, [{"a": torch.zeros(4), "b": torch.zeros(4)}], world=2)
    step(ours, "a")
    assert torch.equal(ours.weight("a", 4), torch.zeros(4))
    counts = [optimizer.state_dict()["state"] for optimizer in ours.optimizers]
    assert [(c["a"]["step"].item(), c["b"]["step"].item()) for c in counts] == [(0, 1), (0, 1)]


def test_counts_are_equal_on_ranks_that_hold_nothing(cluster):
    rule, ours = recorded(cluster, [{"a": torch.zeros(1), "nothing": torch.zeros(0)}], world=3)
    step(ours)
    assert len(rule.calls) == 1
    for optimizer in ours.optimizers:
        state = optimizer.state_dict()["state"]
        assert [state[name]["step"].item() for name in ("a", "nothing")] == [1, 1]


def test_other_dtypes_get_their_own_call(cluster):
    rule = Recorder()
    ours = cluster([(rule, {"a": torch.zeros(3)})])
    (narrow,) = ours.lists[0]
    wide = cluster([(rule, {"b": torch.zeros(5, dtype=torch.float64)})])
    rule.calls.clear()
    optimizer = type(ours.optimizers[0])([narrow, *wide.lists[0]], skip_nonfinite=False)
    rule.calls.clear()
    optimizer.step()
    assert [lengths for _, _, lengths in rule.calls] == [[3], [5]]


def test_a_stage_sees_a_tensor_hyperparameter_as_a_number(cluster):
    seen = []

    @dataclass(frozen=True)
    class Rate(Recorder):
        def _add(self, operands, scalars):
            assert len(operands["main_weight"])
            seen.append(scalars["lr"])

    ours = cluster([(Rate(), {"a": torch.zeros(3)})])
    ours.optimizers[0].param_groups[0]["lr"] = torch.tensor(0.5)
    step(ours)
    assert isinstance(seen[-1], float)
    assert seen[-1] == 0.5
