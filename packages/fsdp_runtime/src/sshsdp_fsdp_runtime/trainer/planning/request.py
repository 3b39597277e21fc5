"""What is planned: the options of `sshsdp plan`, checked and turned into a plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from sshsdp_fsdp_runtime.plan import Options, Pack, Plan, Sharding, Update, build_plan
from sshsdp_fsdp_runtime.trainer.config import OptimizerConfig
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.planning.model_source import read_model, shape_of
from sshsdp_fsdp_runtime.trainer.planning.rule_text import (
    parse_cast,
    parse_degrees,
    parse_pack,
    parse_sharding,
    parse_update,
)
from sshsdp_fsdp_runtime.trainer.recipe import decoder_packs, decoder_updates
from sshsdp_fsdp_runtime.trainer.sizes import size_names
from sshsdp_zerosm import Topology

_MOST_RANKS = 2**20


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Everything that a plan depends on, as text."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A .toml file of names and shapes; a Hugging Face config.json or its folder;
    package.module:callable; or a size of `sshsdp train`: nano, tiny, small, medium, tiny-moe."""
    world: int | None = None
    """Number of ranks; None: 1, or nodes times ranks per node."""
    nodes: int = 1
    """Machines that the ranks lie on, equally many on each, numbered machine by machine."""
    ranks_per_node: int | None = None
    """Ranks on each of them; None: world / nodes."""
    degrees: str | None = None
    """zero3,zero2,zero1 of everything, for example 8,8,64; one number stands for all three; None:
    all ranks."""
    sharding: tuple[str, ...] = ()
    """pattern=zero3,zero2,zero1: degrees of some parameters; the first that matches wins, and
    --degrees comes last."""
    groups: tuple[str, ...] = ()
    """Patterns of modules that are gathered and reduced as one; none: elements of the outermost
    module lists."""
    packs: tuple[str, ...] = ()
    """pattern=member,member: linear layers of a module that are computed as one, for example
    'layers.*.attention=q_proj,k_proj,v_proj'."""
    cast: tuple[str, ...] = ()
    """pattern=dtype: what is computed in; none: as the model was built."""
    optimizer: tuple[str, ...] = ()
    """pattern=rule or pattern=rule@unit, the first that matches wins: for example
    '**.q_proj.weight=muon@heads(128)' 'layers.**=muon(lr=0.02)' adamw. None, and no packs: adamw,
    or for a size of `sshsdp train` the packs and rules that it has."""
    form: Literal["auto", "shared", "private"] = Options().form
    """Whether ranks of a machine share one mapping of full weights; auto: where all ranks that
    weights are sharded over lie on one machine."""
    slots: int = Options().slots
    """Buffers that groups take turns with."""


def request_topology(request: PlanRequest) -> Topology:
    """How the ranks lie on nodes.

    Raises:
        InputError: numbers that don't fit, with some that do.
    """
    given = (("world", request.world), ("nodes", request.nodes))
    for name, value in (*given, ("ranks-per-node", request.ranks_per_node)):
        if value is not None and value < 1:
            raise InputError(f"expected --{name} >= 1, got {value}")
    world, nodes, each = request.world, request.nodes, request.ranks_per_node
    if each is None:
        if world is None:
            world = nodes
        if world % nodes:
            raise InputError(
                f"expected --world as a multiple of --nodes {nodes}, got {world}; use"
                f" {max(1, round(world / nodes)) * nodes}"
            )
        each = world // nodes
    if nodes * each > _MOST_RANKS:
        raise InputError(f"expected at most {_MOST_RANKS:,} ranks, got {nodes * each:,}")
    if world is not None and world == each and nodes == 1:
        return Topology.single(world)
    if world is not None and world != nodes * each:
        raise InputError(
            f"expected --world {nodes * each} with --nodes {nodes} and --ranks-per-node {each}, got"
            f" {world}; leave out one of the three"
        )
    return Topology(nodes, each)


def make_plan(request: PlanRequest) -> Plan:
    """Read the model and plan it.

    Raises:
        InputError: whatever can't be read or is refused; the text says what would be accepted.
    """
    topology = request_topology(request)
    sharding = _sharding(request)
    packs, updates = _packs_and_updates(request)
    casts = [parse_cast(text) for text in request.cast]
    spec = read_model(request.model)
    try:
        return build_plan(
            spec,
            topology,
            sharding=sharding or None,
            groups=request.groups or None,
            packs=packs,
            formats=casts,
            updates=updates or None,
            options=Options(form=request.form, slots=request.slots),
        )
    except ValueError as error:  # PlanError too
        raise InputError(f"{error}{_hint(str(error))}") from error


_OPTIONS = {
    "form=": "--form",
    "Sharding": "--sharding PATTERN=Z3,Z2,Z1, and --degrees Z3,Z2,Z1 for the rest",
    "Update": "--optimizer PATTERN=RULE",
    "parameter ": "--optimizer PATTERN=RULE@UNIT",
    "Cast": "--cast PATTERN=DTYPE",
    "Pack": "--packs PATTERN=MEMBER,MEMBER",
}  # the rules of Python, as options


def _hint(text: str) -> str:
    """How a rule that an error speaks of is written on the command line."""
    hints = [option for rule, option in _OPTIONS.items() if rule in text]
    return f" (as options: {hints[0]})" if hints else ""


def _sharding(request: PlanRequest) -> Sequence[Sharding]:
    rules = [parse_sharding(text) for text in request.sharding]
    if request.degrees is not None:
        rules.append(Sharding("**", parse_degrees(request.degrees, "--degrees")))
    return rules


def _packs_and_updates(request: PlanRequest) -> tuple[Sequence[Pack], Sequence[Update]]:
    if request.model in size_names() and not (request.packs or request.optimizer):
        shape = shape_of(request.model)
        return decoder_packs(shape), decoder_updates(OptimizerConfig(), shape)
    packs = [parse_pack(text) for text in request.packs]
    return packs, [parse_update(text) for text in request.optimizer]
