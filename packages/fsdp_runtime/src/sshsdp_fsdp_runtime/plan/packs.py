"""Packs: linear layers whose weights lie tight, so that one kernel reads them as one operand."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sshsdp_fsdp_runtime.plan.claims import Claim
from sshsdp_fsdp_runtime.plan.model_spec import ModelSpec, ParameterSpec
from sshsdp_fsdp_runtime.plan.patterns import matches
from sshsdp_fsdp_runtime.plan.rules import Pack, PlanError, Update

_Owned: TypeAlias = Mapping[str, Mapping[str, ParameterSpec]]  # by module, then by name in it


@dataclass(frozen=True, slots=True)
class PackPlan:
    """Linear layers of one module that are computed as one.

    Attributes:
        module: the one that the rule matched.
        members: names of the linear modules, in the order of the operand.
        weights: names of their weights.
        biases: names of their biases; empty if they have none.
        rows: output features of each member.
        columns: input features, equal for all.
    """

    module: str
    members: tuple[str, ...]
    weights: tuple[str, ...]
    biases: tuple[str, ...]
    rows: tuple[int, ...]
    columns: int

    @property
    def operands(self) -> tuple[tuple[str, ...], ...]:
        """Names of parameters that lie tight: weights, and biases if there are any."""
        return (self.weights, self.biases) if self.biases else (self.weights,)

    def describe(self) -> str:
        """One line."""
        names = " + ".join(member.removeprefix(f"{self.module}.") for member in self.members)
        biases = " and biases" if self.biases else ""
        return f"pack {self.module}: {names} as one [{sum(self.rows)}, {self.columns}]{biases}"


def plan_packs(
    spec: ModelSpec,
    rules: Sequence[Pack],
    claims: Iterable[Claim],
    updates: Sequence[Update],
    homes: Mapping[str, str],
) -> Mapping[str, tuple[PackPlan, ...]]:
    """The packs of every group that has some, in the order of modules.

    Args:
        spec: the model.
        rules: what to pack. Of rules that want the same layer, the first wins.
        claims: of all parameters.
        updates: rules that the claims point at.
        homes: the group of every parameter, by name.

    Raises:
        PlanError: a rule packs nothing, or the layers that it names can't be one operand.
    """
    packs: dict[str, list[PackPlan]] = defaultdict(list)
    by_name = {claim.parameter.name: claim for claim in claims}
    agreements = _agreements(updates, homes)
    for pack in _found(spec, rules):
        for names in pack.operands:
            for agreement in agreements:
                agreement.check(pack, [by_name[name] for name in names])
        packs[homes[pack.weights[0]]].append(pack)
    return {group: tuple(own) for group, own in packs.items()}


def runs_of(names: Sequence[str], packs: Iterable[PackPlan]) -> tuple[tuple[str, ...], ...]:
    """`names` in order, those of one operand together and where the first of them was."""
    operands = {name: operand for p in packs for operand in p.operands for name in operand}
    return tuple(dict.fromkeys(operands.get(name, (name,)) for name in names))


def _found(spec: ModelSpec, rules: Sequence[Pack]) -> list[PackPlan]:
    owned: dict[str, dict[str, ParameterSpec]] = defaultdict(dict)
    for parameter in spec.parameters:
        for alias in parameter.aliases:
            module, _, name = alias.rpartition(".")
            owned[module][name] = parameter
    taken: set[str] = set()
    found: dict[str, list[PackPlan]] = defaultdict(list)
    for rule in rules:
        before = len(taken)
        for module in (module for module in spec.modules if matches(rule.pattern, module)):
            members = tuple(f"{module}.{member}" for member in rule.members)
            if taken.isdisjoint(members):
                found[module].append(_pack(rule, module, members, owned))
                taken.update(members)
        if len(taken) == before:
            raise PlanError(
                f"expected every pack to match a module, got Pack({rule.pattern!r}, "
                f"{list(rule.members)}) that matches none; patterns of packs name the module "
                "around the members, and of packs with a member in common the first one wins"
            )
    return [pack for module in spec.modules for pack in found.get(module, ())]


def _pack(rule: Pack, module: str, members: tuple[str, ...], owned: _Owned) -> PackPlan:
    where = f"Pack({rule.pattern!r}) in {module!r}"
    weights = [_weight(where, member, owned.get(member, {})) for member in members]
    biases = [owned[member]["bias"] for member in members if "bias" in owned[member]]
    if len({weight.shape[1] for weight in weights}) > 1:
        shapes = ", ".join(f"{w.shape} for {w.name!r}" for w in weights)
        raise PlanError(
            f"{where}: expected members with equally many input features, got {shapes}; pack "
            "layers that read the same tensor"
        )
    if biases and len(biases) < len(members):
        raise PlanError(
            f"{where}: expected a bias in all members or in none, got {len(biases)} for "
            f"{len(members)} members; build them alike, or leave some out of the pack"
        )
    for parameter in (*weights, *biases):
        if len(parameter.aliases) > 1:
            raise PlanError(
                f"{where}: expected parameters of their own, got one that is tied: "
                f"{' = '.join(parameter.aliases)}; leave it out of the pack"
            )
    return PackPlan(
        module=module,
        members=members,
        weights=tuple(weight.name for weight in weights),
        biases=tuple(bias.name for bias in biases),
        rows=tuple(weight.shape[0] for weight in weights),
        columns=weights[0].shape[1],
    )


def _weight(where: str, member: str, own: Mapping[str, ParameterSpec]) -> ParameterSpec:
    """The weight of a linear layer, by what a plan can see of a module."""
    if "weight" in own and len(own["weight"].shape) == 2 and own.keys() <= {"weight", "bias"}:
        return own["weight"]
    shapes = ", ".join(f"{name} {parameter.shape}" for name, parameter in own.items())
    raise PlanError(
        f"{where}: expected {member!r} to be an nn.Linear, got "
        f"{f'a module with {shapes}' if own else 'no parameters of this module'}; name linear "
        "layers, relative to the module that the pattern matches"
    )


@dataclass(frozen=True, slots=True)
class _Agreement:
    """A field that the parameters of an operand must have in common, to be in one atom."""

    field: str
    value: Callable[[Claim], object]
    shown: Callable[[Claim], object]
    advice: str

    def check(self, pack: PackPlan, claims: Sequence[Claim]) -> None:
        first = claims[0]
        for claim in claims[1:]:
            if self.value(claim) != self.value(first):
                raise PlanError(
                    f"pack of {pack.module!r}: expected {self.field} of all members to be the same,"
                    f" got {self.shown(first)} for {first.parameter.name!r} and "
                    f"{self.shown(claim)} for {claim.parameter.name!r}; {self.advice}"
                )


def _agreements(updates: Sequence[Update], homes: Mapping[str, str]) -> tuple[_Agreement, ...]:
    """All fields that divide atoms; those that explain others come first."""

    def group(claim: Claim) -> str:
        return homes[claim.parameter.name] or "root"

    def trainable(claim: Claim) -> bool:
        return claim.parameter.trainable

    def dtypes(claim: Claim) -> str:
        return f"{claim.parameter.dtype} computed in {claim.weight_dtype}"

    def degrees(claim: Claim) -> object:
        return claim.degrees

    def rule(claim: Claim) -> object:
        return None if claim.update is None else updates[claim.update].rule

    return (
        _Agreement("the group", group, group, "let a module around all of them be the group"),
        _Agreement("requires_grad", trainable, trainable, "freeze all of them or none"),
        _Agreement("the dtype", dtypes, dtypes, "build them alike and give them the same Cast"),
        _Agreement("the degrees", degrees, degrees, "give them the same Sharding"),
        _Agreement(
            "the rule object",
            lambda claim: id(rule(claim)),
            rule,
            "make one rule object and give it to the Update of each; units may differ",
        ),
    )
