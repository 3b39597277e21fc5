"""What a stage does not declare it cannot do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from sshsdp_updates import (
    Access,
    Operand,
    OperandAccessError,
    Operands,
    Stage,
    StateField,
    UndeclaredOperandError,
    UpdateRule,
    heads,
)

WEIGHT = Operand("main_weight", Access.UPDATE)
GRAD = Operand("main_grad", Access.READ)


@dataclass(frozen=True)
class Rule(UpdateRule):
    """One stage, given by the test."""

    name: ClassVar[str] = "rule"
    function: Callable
    operands: tuple[Operand, ...]
    fields: tuple[StateField, ...] = (StateField("memory"),)

    def hyperparameters(self):
        return {}

    def validate(self, hyperparameters):
        pass

    def state_fields(self):
        return self.fields

    def stages(self):
        return (Stage("stage", self.function, self.operands),)


def nothing(operands, scalars):
    pass


def build(cluster, *args):
    return cluster([(Rule(*args), {"a": torch.zeros(4)})])


def test_undeclared_field_is_named(cluster):
    def read_memory(operands, scalars):
        operands["memory"]

    with pytest.raises(UndeclaredOperandError, match=r"'stage'.*\('main_weight'\), got 'memory'"):
        build(cluster, read_memory, (WEIGHT,))


def test_undeclared_field_is_refused_in_a_step_too():
    with pytest.raises(UndeclaredOperandError, match="got 'main_grad'"):
        Operands("stage", {"main_weight": ()})["main_grad"]


def test_write_to_a_read_operand_is_named(cluster):
    def scale_gradient(operands, scalars):
        for gradient in operands["main_grad"]:
            gradient.mul_(2)

    with pytest.raises(OperandAccessError, match=r"'main_grad', declared READ.*declare it UPDATE"):
        build(cluster, scale_gradient, (WEIGHT, GRAD))


def test_what_a_stage_does_only_after_its_first_step_is_seen_too(cluster):
    def scale_gradient_later(operands, scalars):
        if scalars["step"] > 1:
            operands["main_grad"][0].mul_(2)

    with pytest.raises(OperandAccessError, match="'main_grad', declared READ"):
        build(cluster, scale_gradient_later, (GRAD,))


def test_write_operand_must_be_written_everywhere(cluster):
    def write_first(operands, scalars):
        operands["memory"][0].fill_(1)

    with pytest.raises(OperandAccessError, match="'memory', declared WRITE"):
        build(cluster, write_first, (Operand("memory", Access.WRITE),))


def test_write_operand_must_not_be_read(cluster):
    def add(operands, scalars):
        for memory in operands["memory"]:
            memory.add_(1)

    with pytest.raises(OperandAccessError, match="'memory', declared WRITE"):
        build(cluster, add, (Operand("memory", Access.WRITE),))


def test_fragments_cannot_be_rebound(cluster):
    def rebind(operands, scalars):
        operands["memory"][0] = torch.ones(4)

    with pytest.raises(TypeError, match="does not support item assignment"):
        build(cluster, rebind, (Operand("memory", Access.WRITE),))


def test_scalars_are_read_only(cluster):
    def write(operands, scalars):
        scalars["step"] = 7

    with pytest.raises(TypeError, match="does not support item assignment"):
        build(cluster, write, (WEIGHT,))


def test_operand_of_no_field_is_named(cluster):
    with pytest.raises(ValueError, match=r"expected operands among .*, got 'exp_avg'"):
        build(cluster, nothing, (Operand("exp_avg", Access.READ),))


def test_unit_that_a_stage_over_elements_cannot_have_is_named(cluster):
    operand = Operand("main_weight", Access.UPDATE, heads(2))
    with pytest.raises(
        ValueError, match=r"over elements can have, got 'heads\(2\)'.*'main_weight'"
    ):
        build(cluster, nothing, (operand,))


@pytest.mark.parametrize("name", ["step", "main_weight"])
def test_state_field_must_not_take_a_name_with_a_meaning(cluster, name):
    with pytest.raises(ValueError, match=f"expected another name for state field '{name}'"):
        build(cluster, nothing, (), (StateField(name),))


def test_a_rule_of_ones_own_runs_and_its_state_has_the_declared_dtype(cluster):
    def accumulate(operands, scalars):
        columns = zip(
            operands["main_weight"], operands["main_grad"], operands["memory"], strict=True
        )
        for weight, gradient, memory in columns:
            memory.add_(gradient)
            weight.sub_(memory)

    operands = (WEIGHT, GRAD, Operand("memory", Access.UPDATE))
    rule = Rule(accumulate, operands, (StateField("memory", torch.float64),))
    ours = cluster([(rule, {"a": torch.zeros(5)})], world=2)
    ours.set_gradients({"a": torch.ones(5)}, {"a": 5})
    for _ in range(2):
        ours.run(lambda optimizer: optimizer.step())
    assert torch.equal(ours.weight("a", 5), torch.full((5,), -3.0))
    assert ours.optimizers[0].state_dict()["state"]["a"]["memory"].dtype is torch.float64
