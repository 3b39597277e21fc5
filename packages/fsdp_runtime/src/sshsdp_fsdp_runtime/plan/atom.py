"""Atoms: parameters of one group that agree in every field, packed field by field."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

import torch

from sshsdp_fsdp_runtime.plan.claims import Claim
from sshsdp_fsdp_runtime.plan.model_spec import ParameterSpec
from sshsdp_fsdp_runtime.plan.options import Options
from sshsdp_fsdp_runtime.plan.packs import PackPlan, runs_of
from sshsdp_fsdp_runtime.plan.rules import PlanError, Update, works_on_units
from sshsdp_shardchain import Degrees, Layout, Member, Placements, plan_layout
from sshsdp_shardchain import Pack as TightMembers
from sshsdp_updates import TensorUnit, UpdateRule, travelling_bytes, whole

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
        rule_index: its index in the list of updates, the first one if it is there several times.
        units: what the rule works on at once, if on more than elements; one per parameter.
        form: how full weights come about.
    """

    name: str
    parameters: tuple[ParameterSpec, ...]
    layout: Layout
    weight_dtype: torch.dtype
    main_dtype: torch.dtype | None
    rule: UpdateRule | None
    rule_index: int | None
    units: tuple[TensorUnit, ...]
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
    packs: Sequence[PackPlan],
    updates: Sequence[Update],
    world: int,
    options: Options,
    form_of: Callable[[Degrees], WeightForm],
) -> tuple[AtomPlan, ...]:
    """Split a group's claims into atoms, keeping the order of the model inside each.

    Members of an atom whose rule works on units are placed anew, so that few units are cut. What is
    packed lies tight, in the order of the operand and aligned at its start.

    Raises:
        PlanError: a parameter has no such units.
    """
    buckets: dict[tuple[object, ...], list[Claim]] = {}
    for claim in claims:
        rule = None if claim.update is None else id(updates[claim.update].rule)
        key = (claim.degrees, claim.weight_dtype, _main_dtype(claim), rule)
        buckets.setdefault(key, []).append(claim)
    return tuple(
        _build_atom(f"{group or 'root'}#{index}", members, packs, updates, world, options, form_of)
        for index, members in enumerate(buckets.values())
    )


def _main_dtype(claim: Claim) -> torch.dtype | None:
    """FP32, or wider where the model was built or is computed in a wider dtype."""
    if claim.update is None:
        return None
    wide = torch.promote_types(claim.parameter.dtype, claim.weight_dtype)
    return torch.promote_types(wide, torch.float32)


def _build_atom(
    atom: str,
    claims: Sequence[Claim],
    packs: Sequence[PackPlan],
    updates: Sequence[Update],
    world: int,
    options: Options,
    form_of: Callable[[Degrees], WeightForm],
) -> AtomPlan:
    first = claims[0]
    rule = None if first.update is None else updates[first.update].rule
    by_name = {claim.parameter.name: claim for claim in claims}
    units = {name: _unit(claim, updates) for name, claim in by_name.items()}
    runs = runs_of(tuple(by_name), packs)
    align = ALIGN_BYTES // first.weight_dtype.itemsize
    if rule is None or not works_on_units(rule):
        sizes = {name: claim.parameter.numel for name, claim in by_name.items()}
        layout = _in_order(runs, sizes, first.degrees, world, align)
    else:
        members = _members(claims, units, rule)
        packed = [TightMembers(tuple(members[name] for name in run)) for run in runs]
        budget = options.padding_budget
        layout = plan_layout(packed, first.degrees, world, align=align, budget=budget)
    names = [placement.name for placement in layout.placements]
    return AtomPlan(
        name=atom,
        parameters=tuple(by_name[name].parameter for name in names),
        layout=layout,
        weight_dtype=first.weight_dtype,
        main_dtype=_main_dtype(first),
        rule=rule,
        rule_index=next((i for i, update in enumerate(updates) if update.rule is rule), None),
        units=tuple(units[name] for name in names),
        form=form_of(first.degrees),
    )


def _in_order(
    runs: Sequence[Sequence[str]],
    sizes: Mapping[str, int],
    degrees: Degrees,
    world: int,
    align: int,
) -> Layout:
    """Runs one after another, each aligned at its start, without gaps inside."""
    totals = [(run[0], sum(sizes[name] for name in run)) for run in runs]
    aligned = Layout.pack(totals, degrees, world, align=align)
    names = [name for run in runs for name in run]
    offsets = [
        start
        for run, placement in zip(runs, aligned.placements, strict=True)
        for start in accumulate((sizes[name] for name in run[:-1]), initial=placement.offset)
    ]
    return Layout(Placements(names, offsets, [sizes[name] for name in names]), aligned.chain)


def _members(
    claims: Sequence[Claim], units: Mapping[str, TensorUnit], rule: UpdateRule
) -> dict[str, Member]:
    """What is placed, and what a cut through it costs; all claims are of one atom."""
    dtype = _main_dtype(claims[0])
    assert dtype is not None
    try:
        travelling = travelling_bytes(rule, dtype)
    except ValueError as error:
        raise PlanError(str(error)) from None
    return {
        claim.parameter.name: Member(
            claim.parameter.name,
            claim.parameter.numel,
            _cuttable(claim, units[claim.parameter.name]),
            travelling,
        )
        for claim in claims
    }


def _unit(claim: Claim, updates: Sequence[Update]) -> TensorUnit:
    update = None if claim.update is None else updates[claim.update]
    return whole() if update is None or update.unit is None else update.unit


def _cuttable(claim: Claim, unit: TensorUnit) -> int:
    """Elements between which a parameter is best cut: those of a unit, or all of them."""
    parameter = claim.parameter
    try:
        units = unit.grid(parameter.shape).units
    except ValueError as error:
        raise PlanError(f"parameter {parameter.name!r}: {error}") from None
    sizes = {strip.numel for strip in units.strips}
    return max(sizes.pop() if units.contiguous and len(sizes) == 1 else parameter.numel, 1)
