"""Atoms: parameters of one group that agree in every field, packed field by field."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch

from sshsdp_fsdp_runtime.plan.claims import Claim
from sshsdp_fsdp_runtime.plan.model_spec import ParameterSpec
from sshsdp_shardchain import Degrees, Layout
from sshsdp_updates import UpdateRule

ALIGN_BYTES = 64  # a cache line, and the widest vector register


class WeightForm(StrEnum):
    """How a rank comes by full weights."""

    REPLICATED = "replicated"  # zero3 = 1: every rank keeps them
    ALIASED = "aliased"  # the gathered buffer is one mapping that all ranks see
    GATHERED = "gathered"  # pulled from the peers' shards into a slot


@dataclass(frozen=True, slots=True)
class AtomPlan:
    """Parameters with equal degrees, dtypes and rule, packed into one tensor list per field.

    Attributes:
        name: unique in the plan.
        parameters: members, in the order of the list.
        layout: placement of the members and the shard chain of the list, in elements.
        weight_dtype: dtype of w and g'.
        main_dtype: dtype of main weights, main gradients and, unless the rule says otherwise,
            of optimizer state; None for frozen atoms.
        rule: the update rule; None for frozen atoms.
        rule_index: its index in the list of updates.
        form: how full weights come about.
    """

    name: str
    parameters: tuple[ParameterSpec, ...]
    layout: Layout
    weight_dtype: torch.dtype
    main_dtype: torch.dtype | None
    rule: UpdateRule | None
    rule_index: int | None
    form: WeightForm

    @property
    def degrees(self) -> Degrees:
        """The atom's degrees."""
        return self.layout.chain.degrees

    @property
    def trainable(self) -> bool:
        """Whether the atom has gradients, main weights and state."""
        return self.rule is not None

    @property
    def separate_main(self) -> bool:
        """Whether main weights are a buffer of their own; else they are the shard of w."""
        return self.trainable and self.main_dtype != self.weight_dtype

    @property
    def separate_main_grad(self) -> bool:
        """Whether main gradients are a buffer of their own; else they are the sums at ZeRO-2."""
        return self.trainable and self.degrees.zero1 != self.degrees.zero2

    @property
    def updates_apart(self) -> bool:
        """Whether an update writes less than the rank keeps of w, so that the rest is gathered."""
        return self.degrees.zero1 != self.degrees.zero3

    @property
    def accumulates_in_place(self) -> bool:
        """Whether g' is the sum at ZeRO-2 itself: nothing is reduced and the dtypes agree."""
        return self.trainable and self.degrees.zero2 == 1 and not self.separate_main

    @property
    def replicas(self) -> int:
        """How many ranks hold the same ZeRO-1 shard."""
        return self.layout.chain.world // self.degrees.zero1

    def chunk_numel(self, degree: int) -> int:
        """Elements of one chunk of the list at a level of `degree`."""
        return self.layout.numel // degree


def build_atoms(
    group: str,
    claims: Iterable[Claim],
    rules: Sequence[UpdateRule],
    world: int,
    form_of: Callable[[Degrees], WeightForm],
) -> tuple[AtomPlan, ...]:
    """Split a group's claims into atoms, keeping the order of the model inside each."""
    buckets: dict[tuple[object, ...], list[Claim]] = {}
    for claim in claims:
        degrees = claim.degrees
        key = (degrees, claim.weight_dtype, _main_dtype(claim), claim.update)
        buckets.setdefault(key, []).append(claim)
    return tuple(
        _build_atom(f"{group or 'root'}#{index}", members, rules, world, form_of)
        for index, members in enumerate(buckets.values())
    )


def _main_dtype(claim: Claim) -> torch.dtype | None:
    """FP32, or wider where the model was built or is computed in a wider dtype."""
    if claim.update is None:
        return None
    wide = torch.promote_types(claim.parameter.dtype, claim.weight_dtype)
    return torch.promote_types(wide, torch.float32)


def _build_atom(
    name: str,
    claims: Sequence[Claim],
    rules: Sequence[UpdateRule],
    world: int,
    form_of: Callable[[Degrees], WeightForm],
) -> AtomPlan:
    first = claims[0]
    return AtomPlan(
        name=name,
        parameters=tuple(claim.parameter for claim in claims),
        layout=Layout.pack(
            [(claim.parameter.name, claim.parameter.numel) for claim in claims],
            first.degrees,
            world,
            align=ALIGN_BYTES // first.weight_dtype.itemsize,
        ),
        weight_dtype=first.weight_dtype,
        main_dtype=_main_dtype(first),
        rule=None if first.update is None else rules[first.update],
        rule_index=first.update,
        form=form_of(first.degrees),
    )
