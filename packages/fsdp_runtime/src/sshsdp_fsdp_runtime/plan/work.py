"""Who works on which unit of which parameter: the plans of the update rules."""

from collections.abc import Sequence

from sshsdp_fsdp_runtime.plan.atom import AtomPlan
from sshsdp_fsdp_runtime.plan.rules import PlanError
from sshsdp_shardchain import ChainHolders
from sshsdp_updates import PlanList, PlanMember, UpdatePlan, plan_updates


def plan_work(atoms: Sequence[AtomPlan], world: int) -> tuple[UpdatePlan, ...]:
    """One plan per rule object, in the order of first use.

    Raises:
        PlanError: a rule can't work on a parameter.
    """
    lists: dict[int, list[AtomPlan]] = {}
    for atom in atoms:
        if atom.rule is not None:
            lists.setdefault(id(atom.rule), []).append(atom)
    try:
        return tuple(_plan(members, world) for members in lists.values())
    except ValueError as error:
        raise PlanError(str(error)) from None


def _plan(atoms: Sequence[AtomPlan], world: int) -> UpdatePlan:
    rule = atoms[0].rule
    assert rule is not None
    return plan_updates(rule, [_list(atom) for atom in atoms], world)


def _list(atom: AtomPlan) -> PlanList:
    assert atom.main_dtype is not None
    members = tuple(
        PlanMember(parameter.name, parameter.shape, unit)
        for parameter, unit in zip(atom.parameters, atom.units, strict=True)
    )
    return PlanList(atom.name, atom.main_dtype, members, ChainHolders(atom.layout))
