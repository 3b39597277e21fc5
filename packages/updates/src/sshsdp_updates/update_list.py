"""What an optimizer is built from: flat local buffers and the members in them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sshsdp_shardchain import Fragment, Holders, Level
from sshsdp_updates.rule import UpdateRule
from sshsdp_updates.unit import TensorUnit, whole

DTYPES = (torch.float32, torch.float64)
WHOLE = whole()


@dataclass(frozen=True)
class UpdateMember:
    """One parameter in a list.

    Attributes:
        name: unique over all lists of an optimizer.
        parameter: what goes into ``param_groups``; its data is never touched here.
        fragment: this rank's piece at level ZERO1; may be empty.
        shape: of the logical parameter.
        unit: what a rule with stages over units works on at once.
    """

    name: str
    parameter: Tensor
    fragment: Fragment
    shape: tuple[int, ...]
    unit: TensorUnit = WHOLE


@dataclass
class UpdateList:
    """A rank's local ZeRO-1 buffers of one list.

    Attributes:
        name: what messages and allocations call it.
        rule: the same object in several lists puts their members into one param group.
        members: their fragments' ``local_offset`` is relative to `main_weight`; what no member
            covers is padding and is never read or written.
        main_weight: 1-D, float32 or float64. Its address must stay for the optimizer's lifetime.
        main_grad: like `main_weight`.
        counted: False where another rank counts these elements in norms, so that each logical
            element is counted once.
        holders: who holds which elements of the members; None is a world of one rank. Only rules
            with stages over units or rows ask.
    """

    name: str
    rule: UpdateRule
    members: tuple[UpdateMember, ...]
    main_weight: Tensor
    main_grad: Tensor
    counted: bool = True
    holders: Holders | None = None


def check_lists(lists: Sequence[UpdateList]) -> None:
    """Check buffers, fragments and names.

    Raises:
        ValueError: naming the list and the member.
    """
    names: set[str] = set()
    parameters: set[int] = set()
    for update_list in lists:
        _check_buffers(update_list)
        _check_fragments(update_list)
        for member in update_list.members:
            if member.name in names or id(member.parameter) in parameters:
                raise ValueError(
                    f"list {update_list.name!r}: expected every parameter and every name once, "
                    f"got {member.name!r} again; give a shared parameter one member"
                )
            names.add(member.name)
            parameters.add(id(member.parameter))
    if not names:
        raise ValueError("expected at least one member in the lists, got none")


def _check_buffers(update_list: UpdateList) -> None:
    weight, grad = update_list.main_weight, update_list.main_grad
    for field, tensor in (("main_weight", weight), ("main_grad", grad)):
        if tensor.dim() != 1 or not tensor.is_contiguous() or tensor.dtype not in DTYPES:
            raise ValueError(
                f"list {update_list.name!r}: expected a contiguous 1-D {field} of float32 or "
                f"float64, got shape {tuple(tensor.shape)} of {tensor.dtype}"
            )
    if (weight.numel(), weight.dtype, weight.device) != (grad.numel(), grad.dtype, grad.device):
        raise ValueError(
            f"list {update_list.name!r}: expected main_grad like main_weight "
            f"({weight.numel()} elements of {weight.dtype} on {weight.device}), got "
            f"{grad.numel()} of {grad.dtype} on {grad.device}"
        )


def _check_fragments(update_list: UpdateList) -> None:
    end, before = 0, "the buffer's start"
    for member in sorted(update_list.members, key=lambda member: member.fragment.local_offset):
        fragment = member.fragment
        if fragment.level is not Level.ZERO1 or fragment.name != member.name:
            raise ValueError(
                f"list {update_list.name!r}: expected the {Level.ZERO1} fragment of "
                f"{member.name!r}, got the {fragment.level} fragment of {fragment.name!r}"
            )
        if fragment.empty:
            continue
        if fragment.local_offset < end:
            raise ValueError(
                f"list {update_list.name!r}: expected {member.name!r} behind {before}, which ends "
                f"at element {end}, got offset {fragment.local_offset}"
            )
        end, before = fragment.local_offset + fragment.numel, repr(member.name)
    if end > update_list.main_weight.numel():
        raise ValueError(
            f"list {update_list.name!r}: expected buffers of at least {end} elements, to the end "
            f"of {before}, got {update_list.main_weight.numel()}"
        )
