"""The plan: one frozen value that holds every decision, described, forecast and signed."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import groupby

import torch

from sshsdp_fsdp_runtime.plan.atom import AtomPlan, WeightForm, build_atoms
from sshsdp_fsdp_runtime.plan.claims import Claim, claim_parameters
from sshsdp_fsdp_runtime.plan.forecast import Forecast, forecast
from sshsdp_fsdp_runtime.plan.group import (
    ROOT,
    GroupPlan,
    assign_slots,
    group_modules,
    home_of,
)
from sshsdp_fsdp_runtime.plan.ignored import without_ignored
from sshsdp_fsdp_runtime.plan.model_spec import ModelSpec
from sshsdp_fsdp_runtime.plan.operands import packed_operands
from sshsdp_fsdp_runtime.plan.options import Options
from sshsdp_fsdp_runtime.plan.packs import PackPlan, plan_packs
from sshsdp_fsdp_runtime.plan.rules import Cast, Pack, PlanError, Sharding, Update, check_list
from sshsdp_fsdp_runtime.plan.storage import Storage
from sshsdp_fsdp_runtime.plan.work import plan_work
from sshsdp_shardchain import Degrees
from sshsdp_updates import AdamW, UpdatePlan
from sshsdp_zerosm import Topology


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is decided about a sharded model.

    Attributes:
        spec: the model.
        topology: how the ranks lie on nodes.
        options: choices that hold for the whole plan.
        claims: which rules apply to which parameter.
        groups: runtime groups in the order of the forward pass, the root last.
        updates: one line per update rule, for signature and description.
        storage: where every buffer lies.
        update_plans: who works on what, per update rule.
    """

    spec: ModelSpec
    topology: Topology
    options: Options
    claims: tuple[Claim, ...]
    groups: tuple[GroupPlan, ...]
    updates: tuple[str, ...]
    storage: Storage
    update_plans: tuple[UpdatePlan, ...]

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.topology.world

    @property
    def atoms(self) -> tuple[AtomPlan, ...]:
        """All atoms, group by group."""
        return tuple(atom for group in self.groups for atom in group.atoms)

    @property
    def packs(self) -> tuple[PackPlan, ...]:
        """All packs, group by group."""
        return tuple(pack for group in self.groups for pack in group.packs)

    @property
    def reduction_order(self) -> tuple[GroupPlan, ...]:
        """Groups in the order in which every rank reduces them: backward, the root last."""
        return (*reversed(self.groups[:-1]), self.groups[-1])

    def forecast(self) -> Forecast:
        """Bytes by role."""
        return forecast(self)

    def sections(self) -> dict[str, str]:
        """Digest of each part that must be equal on all ranks; named for error messages."""
        layouts = [
            (g.module, g.slot, [(a.name, a.layout.signature()) for a in g.atoms], g.packs)
            for g in self.groups
        ]
        content = {
            "versions": _versions(),
            "world": self.topology,
            "model": (
                self.spec.parameters,
                self.spec.buffers,
                self.spec.modules,
                self.spec.initial,
                self.spec.ignored,
            ),
            "options": self.options,
            "rules": (
                [(c.parameter.name, c.degrees, c.weight_dtype, c.update) for c in self.claims],
                self.updates,
            ),
            "layout": layouts,
            "updates": [plan.signature() for plan in self.update_plans],
        }
        return {
            key: hashlib.sha256(repr(value).encode()).hexdigest() for key, value in content.items()
        }

    def signature(self) -> str:
        """Hash of everything that ranks must agree on."""
        return hashlib.sha256(repr(self.sections()).encode()).hexdigest()

    def describe(self) -> str:
        """The plan in words: who claimed what, groups, layouts, bytes."""
        numel = sum(parameter.numel for parameter in self.spec.parameters)
        lines = [f"plan for {self.world} rank(s), {numel:,} parameters"]
        lines += [f"initial values: {_INITIAL[i]}" for i in (self.spec.initial,) if i in _INITIAL]
        for parameter in self.spec.ignored:
            lines.append(f"ignored: {'  = '.join(parameter.aliases)} {parameter.shape}")
        for group in self.groups:
            lines.append(f"group {group.label} (slot {group.slot})")
            lines += [line for atom in group.atoms for line in _describe_atom(atom)]
            lines += _describe_packs(group)
        lines += [plan.describe() for plan in self.update_plans]
        return "\n".join([*lines, self.forecast().describe()])


_INITIAL = {
    "recorded": "those of the recorded construction, replayed tensor by tensor",
    "drawn": "drawn by the model's own initialization, since it was on the meta device; they are "
    "not those of a construction under the same seed",
}
_PACKAGES = ("datatree", "shardchain", "zerosm", "mxfp", "updates", "fsdp-runtime")


@cache
def _versions() -> list[tuple[str, str]]:
    """Of what decides about a plan; read from the files of the installation, so only once."""
    ours = [(name, version(f"sshsdp-{name}")) for name in _PACKAGES]
    return [*ours, ("torch", torch.__version__)]


def _describe_atom(atom: AtomPlan) -> list[str]:
    degrees = atom.degrees
    head = (
        f"  atom {atom.name}: degrees ({degrees.zero3}, {degrees.zero2}, {degrees.zero1}), "
        f"{atom.form.value} {_short(atom.weight_dtype)} weights, "
        + (f"main {_short(atom.main_dtype)}, {atom.rule!r}" if atom.main_dtype else "frozen")
        + f", {atom.layout.numel:,} elements, {atom.layout.padding:,} of them padding"
    )
    choice = atom.layout.choice
    placed = [] if choice is None else [f"    {choice.describe()}"]
    return [head, *placed, *(f"    {'  = '.join(p.aliases)} {p.shape}" for p in atom.parameters)]


def _describe_packs(group: GroupPlan) -> Iterator[str]:
    for pack, operands in groupby(packed_operands(group), lambda operand: operand.pack):
        yield f"  {pack.describe()}"
        yield from (f"    {operand.describe()}" for operand in operands)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def build_plan(
    spec: ModelSpec,
    ranks: int | Topology,
    *,
    sharding: Sequence[Sharding] | None = None,
    groups: Sequence[str] | None = None,
    packs: Sequence[Pack] = (),
    formats: Sequence[Cast] = (),
    updates: Sequence[Update] | None = None,
    ignored: Sequence[str] = (),
    options: Options | None = None,
) -> Plan:
    """Decide everything, without a device, a process group or weights.

    Args:
        spec: the model.
        ranks: how many there are, all on one node, or how they lie on nodes.
        sharding: rules for degrees; default: weights and sums of gradients over the ranks
            of a node, the update over all ranks.
        groups: patterns of modules that are gathered and reduced as one; default: the elements
            of every outermost ``nn.ModuleList``.
        packs: rules for linear layers that are computed as one.
        formats: rules for the dtype of runtime weights; default: as the model was built.
        updates: rules for optimizers; default: ``AdamW()`` for all.
        ignored: patterns of parameters that no rule sees.
        options: choices for the whole plan.

    Raises:
        TypeError: rules or patterns that are not in a list, or others than an argument takes.
        PlanError: rules and model don't fit.
    """
    for name, kind, given in (
        ("sharding", Sharding, sharding),
        ("groups", str, groups),
        ("packs", Pack, packs),
        ("formats", Cast, formats),
        ("updates", Update, updates),
        ("ignored", str, ignored),
    ):
        if given is not None:
            check_list(name, given, kind)
    options = options or Options()
    topology = ranks if isinstance(ranks, Topology) else Topology.single(ranks)
    world = topology.world
    spec = without_ignored(spec, ignored)
    if not spec.parameters:
        raise PlanError(
            "expected a model with parameters, got one without; there is nothing to shard"
        )
    if sharding is None:
        sharding = [Sharding("**", Degrees.for_outer_zero1(topology.ranks_per_node, world))]
    if updates is None:
        updates = [Update("**", AdamW())] if any(p.trainable for p in spec.parameters) else []
    claims = claim_parameters(spec, sharding, formats, updates, topology, options.form)
    modules = group_modules(spec, groups)
    slots = assign_slots(modules, options.slots)

    def form_of(degrees: Degrees) -> WeightForm:
        if degrees.zero3 == 1:
            return WeightForm.REPLICATED
        fits = topology.ranks_per_node % degrees.zero3 == 0
        private = options.form == "private" or options.poison or not fits
        return WeightForm.GATHERED if private else WeightForm.ALIASED

    members: dict[str, list[Claim]] = {module: [] for module in [*modules, ROOT]}
    homes = {claim.parameter.name: home_of(claim.parameter, members) for claim in claims}
    for claim in claims:
        members[homes[claim.parameter.name]].append(claim)
    packed = plan_packs(spec, packs, claims, updates, homes)
    placed = tuple(
        GroupPlan(
            module,
            slots[module],
            build_atoms(module, own, packed.get(module, ()), updates, world, options, form_of),
            packed.get(module, ()),
        )
        for module, own in members.items()
    )
    work = plan_work([atom for group in placed for atom in group.atoms], world)
    return Plan(
        spec=spec,
        topology=topology,
        options=options,
        claims=claims,
        groups=placed,
        updates=tuple(f"{update.pattern}: {update.rule!r}" for update in updates),
        storage=Storage.of(spec, placed, topology, max((plan.nbytes for plan in work), default=0)),
        update_plans=work,
    )
