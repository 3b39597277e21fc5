"""A value of a wrong type is an error where it is given, that says what to give."""

from functools import partial

import pytest
import torch
from torch import nn

from sshsdp_updates import (
    OWN,
    SGD,
    AdamW,
    Lion,
    Muon,
    NorMuon,
    TorchRule,
    columns,
    heads,
    optimizer_for,
    pieces,
    whole,
)

WEIGHTS = nn.Linear(4, 4)


def chosen(choice):
    return partial(optimizer_for, WEIGHTS.named_parameters(), lambda name, shape: choice)  # noqa: ARG005


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (partial(AdamW, lr="0.1"), r"expected a lr >= 0 and finite, got lr='0\.1'"),
        (partial(AdamW, lr=None), "expected a lr >= 0 and finite, got lr=None"),
        (partial(AdamW, lr=torch.ones(2)), "expected a lr >= 0 and finite, got lr=tensor"),
        (partial(AdamW, betas=0.9), r"expected two betas in \[0, 1\), got betas=0\.9"),
        (partial(AdamW, betas=(0.9, "x")), r"expected two betas in \[0, 1\)"),
        (partial(Lion, betas=0.9), r"expected two betas in \[0, 1\)"),
        (partial(Lion, weight_decay="x"), "expected a weight_decay >= 0"),
        (partial(SGD, momentum=[0.9]), "expected a momentum >= 0"),
        (
            partial(SGD, dampening="x"),
            "a finite number as dampening, usually .*, got dampening='x'",
        ),
        (
            partial(SGD, dampening=float("nan")),
            "a finite number as dampening, .*, got dampening=nan",
        ),
        (partial(SGD, dampening=-float("inf")), "a finite number as dampening"),
        (partial(SGD, momentum=0.9, nesterov="no"), "True or False as nesterov, got nesterov='no'"),
        (
            partial(Muon, ns_steps=2.5),
            r"expected ns_steps from 0 to 99, or None, got ns_steps=2\.5",
        ),
        (partial(Muon, ns_coefficients=3), r"three ns_coefficients \(a, b, c\), got 3"),
        (partial(Muon, ns_coefficients=(1, 2, "x")), "three ns_coefficients"),
        (
            partial(Muon, adjust_lr_fn=["one"]),
            r"expected one of original,.*got adjust_lr_fn=\['one'",
        ),
        (partial(NorMuon, ns_dtype="bfloat16"), "got ns_dtype='bfloat16'"),
        (partial(heads, 2.5), r"units of 1 or more rows or columns, got 2\.5; give .* as an int"),
        (partial(columns, 2.5), r"units of 1 or more rows or columns, got 2\.5"),
        (partial(pieces, [2, 0]), "units of 1 or more rows or columns, got 0"),
    ],
)
def test_a_number_that_is_none_is_refused_by_name(call, text):
    with pytest.raises(ValueError, match=text):
        call()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (partial(pieces, 3), r"expected a list of ints, got 3; give them as in \[64, 64, 32\]"),
        (partial(pieces, [1, 2.5]), r"expected a list of ints, got \[1, 2\.5\]"),
        (partial(columns, "ab"), "expected a list of ints, got 'ab'"),
        (partial(whole, 3), "expected a list of ints, got 3"),
        (
            partial(TorchRule, "RAdam"),
            r"class of torch\.optim, got 'RAdam'; give the class and its",
        ),
        (
            partial(TorchRule, torch.optim.SGD(WEIGHTS.parameters())),
            "expected a class of torch.optim",
        ),
        (partial(TorchRule, nn.Linear), r"class of torch\.optim, got <class .*Linear"),
        (
            partial(optimizer_for, WEIGHTS.parameters(), lambda *_: AdamW()),
            r"names with their parameters, got Parameter; give model\.named_parameters\(\)",
        ),
        (
            partial(optimizer_for, WEIGHTS, lambda *_: AdamW()),
            r"names with their parameters, got Linear; give model\.named_parameters\(\)",
        ),
        (
            partial(optimizer_for, WEIGHTS.named_parameters(), AdamW()),
            r"expected a function of a name and a shape, got AdamW\(.*; give one, such as lambda",
        ),
        (
            chosen(None),
            r"choose\('weight', shape\): expected an update rule, got an object of None",
        ),
        (chosen(AdamW), r"update rule, got the class AdamW; make one: AdamW\(\.\.\.\)"),
        (
            chosen(torch.optim.RAdam),
            r"class torch\.optim\.RAdam; give a rule of .* or TorchRule\(torch\.optim\.RAdam, ",
        ),
        (
            chosen(torch.optim.AdamW(WEIGHTS.parameters())),
            r"an object of torch\.optim\.AdamW; give .*TorchRule\(torch\.optim\.AdamW, ",
        ),
        (chosen((Muon(), 8)), r"expected a unit that cuts a tensor, got 8; give heads\(size\), "),
        (chosen((Muon(), OWN)), "expected a unit that cuts a tensor, got _Own"),
        (chosen((Muon(), heads(2), 3)), "expected an update rule, got an object of tuple"),
    ],
)
def test_an_object_of_another_kind_is_refused_with_what_to_give(call, text):
    with pytest.raises(TypeError, match=text):
        call()
