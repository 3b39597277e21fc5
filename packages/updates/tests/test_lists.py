"""Buffers and members that don't fit together are refused by name."""

import dataclasses

import pytest
import torch

from sshsdp_shardchain import Degrees, Layout, Level
from sshsdp_updates import SGD, AdamW, ShardedOptimizer, UpdateList, UpdateMember

LAYOUT = Layout.pack([("a", 4), ("b", 3)], Degrees(1, 1, 1), 1)


def members(level=Level.ZERO1):
    return tuple(
        UpdateMember(f.name, torch.nn.Parameter(torch.zeros(f.numel)), f, (f.numel,))
        for f in LAYOUT.fragments(level, 0)
    )


def build(**changes):
    item = UpdateList("weights", SGD(), members(), torch.zeros(7), torch.zeros(7))
    return ShardedOptimizer([dataclasses.replace(item, **changes)])


def test_a_list_that_fits_is_taken():
    assert build().param_groups[0]["param_names"] == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"main_weight": torch.zeros(7, 1)}, r"contiguous 1-D main_weight.* got shape \(7, 1\)"),
        ({"main_weight": torch.zeros(14)[::2]}, r"contiguous 1-D main_weight"),
        ({"main_weight": torch.zeros(7).bfloat16()}, r"float32 or float64, got .*bfloat16"),
        ({"main_grad": torch.zeros(7).double()}, r"main_grad like main_weight .*got 7 of .*64"),
        ({"main_grad": torch.zeros(6)}, r"main_grad like main_weight .*got 6 of"),
        ({"main_weight": torch.zeros(6), "main_grad": torch.zeros(6)}, r"at least 7 .*'b', got 6"),
        ({"members": members(Level.FULL)}, r"zero1 fragment of 'a', got the full fragment"),
        ({"members": members() + members()[:1]}, r"'a' behind 'a', which ends at element 4, got"),
        ({"members": ()}, r"at least one member in the lists, got none"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        build(**changes)


def test_a_name_or_a_parameter_in_two_lists_is_refused():
    item = UpdateList("first", SGD(), members(), torch.zeros(7), torch.zeros(7))
    again = dataclasses.replace(item, name="second")
    with pytest.raises(ValueError, match=r"list 'second': expected every .* once, got 'a' again"):
        ShardedOptimizer([item, again])


def test_one_parameter_under_two_names_is_refused():
    first, second = members()
    shared = dataclasses.replace(second, parameter=first.parameter)
    with pytest.raises(ValueError, match=r"got 'b' again; give a shared parameter one member"):
        build(members=(first, shared))


def test_a_list_without_members_and_without_elements_is_legal():
    item = UpdateList("weights", SGD(), members(), torch.zeros(7), torch.ones(7))
    empty = UpdateList("empty", AdamW(), (), torch.zeros(0), torch.zeros(0))
    optimizer = ShardedOptimizer([empty, item])
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert [group["param_names"] for group in optimizer.param_groups] == [[], ["a", "b"]]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda: AdamW(lr=-1.0), "a lr >= 0 and finite, got lr=-1.0"),
        (lambda: AdamW(betas=(0.9, 1.0)), r"two betas in \[0, 1\), got"),
        (lambda: AdamW(eps=float("nan")), "a eps >= 0 and finite, got eps=nan"),
        (lambda: SGD(lr=float("inf")), "a lr >= 0 and finite, got lr=inf"),
        (lambda: SGD(momentum=-0.5), "a momentum >= 0 and finite, got"),
        (lambda: SGD(nesterov=True), "a momentum > 0 and dampening 0 with nesterov"),
        (lambda: SGD(momentum=0.9, dampening=0.1, nesterov=True), "dampening 0 with nesterov"),
    ],
)
def test_illegal_hyperparameters_are_refused_when_the_rule_is_made(rule, message):
    with pytest.raises(ValueError, match=message):
        rule()
