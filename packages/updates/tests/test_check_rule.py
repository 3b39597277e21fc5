"""A rule that depends on cuts is found out, with tensor, unit and stage; rules that don't pass."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from sshsdp_updates import (
    OWN,
    ROW,
    SGD,
    Access,
    AdamW,
    Lion,
    Muon,
    NorMuon,
    Operand,
    RuleError,
    Stage,
    StageKind,
    Temporary,
    UpdateRule,
    check_rule,
    heads,
    whole,
)

GRAD = Operand("main_grad", Access.READ)
WEIGHT = Operand("main_weight", Access.UPDATE)


@pytest.mark.parametrize(
    "rule",
    [AdamW(), SGD(0.1, 0.9), Lion(), Muon(), Muon(ns_dtype=torch.float32), NorMuon()],
    ids=lambda rule: rule.name,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_rules_of_the_package_pass(rule, dtype):
    check_rule(rule, dtype=dtype)


@dataclass(frozen=True)
class Custom(UpdateRule):
    name: ClassVar[str] = "custom"
    listed: tuple[Stage, ...]
    kept: tuple[Temporary, ...] = field(default=())

    def hyperparameters(self):
        return {}

    def validate(self, hyperparameters):
        pass

    def state_fields(self):
        return ()

    def temporaries(self):
        return self.kept

    def stages(self):
        return self.listed


def subtract(operands, scalars):
    for weight, grad in zip(operands["main_weight"], operands["main_grad"], strict=True):
        weight.sub_(grad)


def centre(operands, scalars):
    for weight in operands["main_weight"]:
        weight.sub_(weight.mean())


FINE = Stage("subtract", subtract, (GRAD, WEIGHT))


def test_a_stage_over_elements_that_looks_at_others_is_named():
    rule = Custom((FINE, Stage("centre", centre, (WEIGHT,))))
    text = r"'main_weight' of tensor 'tensor' in unit 0 of whole\(\), element 0 .*stage 'centre'"
    with pytest.raises(RuleError, match=text):
        check_rule(rule, worlds=(2,))


def units_mixed(operands, scalars):
    for out, grad in zip(operands["out"], operands["main_grad"], strict=True):
        out.copy_(grad)
        if len(out) > 1:
            out[1].mul_(2)  # depends on what else is in the batch


def apply(operands, scalars):
    for weight, out in zip(operands["main_weight"], operands["out"], strict=True):
        weight.sub_(out)


def test_a_stage_over_units_that_looks_at_its_batch_is_named():
    rule = Custom(
        (
            Stage(
                "mix",
                units_mixed,
                (Operand("main_grad", Access.READ, OWN), Operand("out", Access.WRITE, OWN)),
                StageKind.UNITS,
            ),
            Stage("apply", apply, (Operand("out", Access.READ), WEIGHT)),
        ),
        (Temporary("out"),),
    )
    with pytest.raises(
        RuleError, match=r"another 'out' of tensor 'a' in unit \d of heads\(2\).*'mix'"
    ):
        check_rule(rule, tensors={"a": ((6, 5), heads(2))}, worlds=(2, 3))


def test_a_value_that_a_rule_keeps_itself_is_suspected():
    calls = []

    def drift(operands, scalars):
        calls.append(1)
        for weight in operands["main_weight"]:
            weight.add_(float(len(calls)))

    with pytest.raises(RuleError, match="expected the same bits on 2 ranks"):
        check_rule(Custom((Stage("drift", drift, (WEIGHT,)),)), worlds=(2,))


def squares(operands, scalars):
    for grad, total in zip(operands["main_grad"], operands["total"], strict=True):
        total.copy_(grad)
        total.square_()


def shrink(operands, scalars):
    for weight, total in zip(operands["main_weight"], operands["total"], strict=True):
        weight.div_(1 + total)


def test_sums_over_rows_pass():
    total = Temporary("total", torch.float64, ROW)
    rule = Custom(
        (
            Stage(
                "squares", squares, (GRAD, Operand("total", Access.WRITE, ROW)), StageKind.REDUCE
            ),
            Stage("shrink", shrink, (WEIGHT, Operand("total", Access.READ, ROW))),
        ),
        (total,),
    )
    check_rule(rule)
    check_rule(rule, tensors={"a": ((7, 5000), heads(7)), "v": ((11,), whole())})
