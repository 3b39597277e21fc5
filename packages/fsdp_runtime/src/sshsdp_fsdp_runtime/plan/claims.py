"""Who claimed what: every rule applied to every parameter, the first match of a kind wins."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import TypeVar

import torch

from sshsdp_fsdp_runtime.plan.model_spec import ModelSpec, ParameterSpec
from sshsdp_fsdp_runtime.plan.patterns import matches
from sshsdp_fsdp_runtime.plan.rules import Cast, PlanError, Sharding, Update, works_on_units
from sshsdp_shardchain import Degrees
from sshsdp_zerosm import Topology

Rule = TypeVar("Rule", Sharding, Cast, Update)


@dataclass(frozen=True, slots=True)
class Claim:
    """The rules that apply to one parameter; `update` is None for frozen parameters."""

    parameter: ParameterSpec
    degrees: Degrees  # of a frozen parameter (zero3, zero3, zero3): nothing of it is updated
    weight_dtype: torch.dtype
    update: int | None  # index into the list of update rules


def claim_parameters(
    spec: ModelSpec,
    sharding: Sequence[Sharding],
    formats: Sequence[Cast],
    updates: Sequence[Update],
    topology: Topology,
    form: str,
) -> tuple[Claim, ...]:
    """Apply the rules.

    Raises:
        PlanError: a rule claims nothing, a parameter is not claimed, degrees do not fit the
            ranks, a cast is not to a floating dtype.
    """
    for shard_rule in sharding:
        _check_degrees(shard_rule, topology, form)
    for claimed in updates:
        if claimed.unit is not None and not works_on_units(claimed.rule):
            raise PlanError(
                f"Update({claimed.pattern!r}): expected a rule that works on units, got "
                f"unit={claimed.unit.name} for {claimed.rule.name!r}, which works on elements; "
                "leave the unit out"
            )
    for rule in formats:
        if not rule.dtype.is_floating_point:
            raise PlanError(
                f"expected a floating-point dtype in Cast({rule.pattern!r}), got {rule.dtype}"
            )
        if rule.dtype.itemsize < 2:
            raise PlanError(
                f"expected a dtype of 2 bytes or more in Cast({rule.pattern!r}), got {rule.dtype}, "
                "which torch's layers don't compute in; use torch.bfloat16"
            )
    positions = {id(update): index for index, update in enumerate(updates)}
    used: set[int] = set()
    claims = []
    for parameter in spec.parameters:
        shard = _first(sharding, parameter, used, _everything)
        cast = _first(formats, parameter, used, _is_floating)
        update = _first(updates, parameter, used, _is_updated)
        if shard is None:
            raise PlanError(
                f"expected a Sharding rule for every parameter, got none for {parameter.name!r}; "
                'end the list with Sharding("**", ...)'
            )
        if parameter.trainable and update is None:
            raise PlanError(
                f"expected every trainable parameter to be claimed by an Update rule, got none for "
                f'{parameter.name!r}; end the list with Update("**", AdamW(...)) or freeze it with '
                "requires_grad_(False)"
            )
        dtype = cast.dtype if cast is not None else parameter.dtype
        if parameter.trainable and dtype is torch.float16:
            raise PlanError(
                "expected float32, float64 or bfloat16, in which gradients are summed, for every "
                f"trainable parameter, got torch.float16 for {parameter.name!r}; use "
                'Cast("**", torch.bfloat16)'
            )
        claims.append(
            Claim(
                parameter=parameter,
                degrees=_degrees(shard, parameter),
                weight_dtype=dtype,
                update=None if update is None else positions[id(update)],
            )
        )
    _check_used([*sharding, *formats, *updates], used)
    return tuple(claims)


def _everything(_rule: object, _parameter: ParameterSpec) -> bool:
    return True


def _is_floating(_rule: object, parameter: ParameterSpec) -> bool:
    return parameter.dtype.is_floating_point


def _is_updated(rule: Update, parameter: ParameterSpec) -> bool:
    return parameter.trainable and (rule.where is None or rule.where(parameter))


def _first(
    rules: Sequence[Rule],
    parameter: ParameterSpec,
    used: set[int],
    applies: Callable[[Rule, ParameterSpec], bool],
) -> Rule | None:
    for rule in rules:
        named = any(matches(rule.pattern, alias) for alias in parameter.aliases)
        if named and applies(rule, parameter):
            used.add(id(rule))
            return rule
    return None


def _degrees(rule: Sharding, parameter: ParameterSpec) -> Degrees:
    return rule.degrees if parameter.trainable else Degrees.for_hsdp(rule.degrees.zero3)


def _check_degrees(rule: Sharding, topology: Topology, form: str) -> None:
    try:
        rule.degrees.check_world(topology.world)
    except ValueError as error:
        raise PlanError(f"Sharding({rule.pattern!r}): {error}") from None
    zero3 = rule.degrees.zero3
    if form == "shared" and topology.ranks_per_node % zero3:
        raise PlanError(
            f"Sharding({rule.pattern!r}): expected form='auto' or 'private' where weights are "
            f"sharded over more ranks than one node has, got form='shared' with zero3={zero3} and "
            f"{topology.ranks_per_node} ranks per node; use form='auto', or "
            f"zero3={gcd(zero3, topology.ranks_per_node)}"
        )


def _check_used(rules: Iterable[Sharding | Cast | Update], used: set[int]) -> None:
    for rule in rules:
        if id(rule) not in used:
            raise PlanError(
                f"expected every rule to claim a parameter, got {type(rule).__name__}"
                f"({rule.pattern!r}) that claims none; check the pattern ('*' stays within a name, "
                "'**' crosses dots), or move it before the rules that match first"
            )
