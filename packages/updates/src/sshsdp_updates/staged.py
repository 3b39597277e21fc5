"""Builds what runs each rule, and has ranks agree on the plans first."""

from collections.abc import Sequence

import torch

from sshsdp_updates.declarations import is_staged
from sshsdp_updates.exchange import AnyExchange, LocalExchange
from sshsdp_updates.flat_state import FlatState
from sshsdp_updates.group import UpdateGroup
from sshsdp_updates.holders import WholeHolders
from sshsdp_updates.plan import PlanList, PlanMember, UpdatePlan
from sshsdp_updates.planner import plan_updates
from sshsdp_updates.rule import UpdateRule
from sshsdp_updates.staged_group import StagedGroup
from sshsdp_updates.update_list import UpdateList

Group = UpdateGroup | StagedGroup


def build_groups(
    rules: Sequence[UpdateRule],
    flats: Sequence[FlatState],
    exchange: AnyExchange | None,
    limit: int,
) -> list[Group]:
    """Plan, agree, reserve and compile; collective where a rule has stages over units or rows.

    Raises:
        ValueError: lists without holders, members that are not where their holders say, or
            plans that differ between ranks.
    """
    by_rule = {id(rule): [flat for flat in flats if flat.source.rule is rule] for rule in rules}
    staged = [rule for rule in rules if is_staged(rule)]
    if not staged:
        return [UpdateGroup(rule, by_rule[id(rule)]) for rule in rules]
    device = by_rule[id(staged[0])][0].source.main_weight.device
    exchange = exchange or LocalExchange(device)
    plans = {
        id(rule): plan_updates(
            rule,
            [_plan_list(flat.source, exchange) for flat in by_rule[id(rule)]],
            exchange.world,
            limit=limit,
        )
        for rule in staged
    }
    _agree(list(plans.values()), exchange)
    buffer = exchange.reserve(max(plan.nbytes for plan in plans.values()))
    return [
        StagedGroup(plans[id(rule)], by_rule[id(rule)], exchange, buffer)
        if id(rule) in plans
        else UpdateGroup(rule, by_rule[id(rule)])
        for rule in rules
    ]


def _plan_list(item: UpdateList, exchange: AnyExchange) -> PlanList:
    """Look at a list as a plan does, and check that its members are where its holders say."""
    holders = item.holders
    if holders is None:
        numels = {member.name: torch.Size(member.shape).numel() for member in item.members}
        holders = WholeHolders(numels)
    rank = exchange.rank % holders.width
    for member in item.members:
        held = next(((h.start, h.stop) for h in holders.of(member.name) if h.rank == rank), None)
        mine = None if member.fragment.empty else (member.fragment.start, member.fragment.stop)
        if held != mine:
            raise ValueError(
                f"list {item.name!r}: expected rank {exchange.rank} to hold elements {held} of "
                f"{member.name!r}, as its holders say, got {mine}; pass the holders of the layout "
                "that the fragments are from, and the exchange of its ranks"
            )
    members = tuple(PlanMember(m.name, m.shape, m.unit) for m in item.members)
    return PlanList(item.name, item.main_weight.dtype, members, holders)


def _agree(plans: Sequence[UpdatePlan], exchange: AnyExchange) -> None:
    """Compare signatures; float64 holds 52 of their bits."""
    for plan in plans:
        number = float(int(plan.signature()[:13], 16))
        extremes = torch.tensor([number, -number], dtype=torch.float64)
        exchange.all_reduce(extremes, "max")
        if extremes.tolist() != [number, -number]:
            raise ValueError(
                f"rule {plan.rule.name!r}: expected the same plan on every rank, got another one "
                "somewhere; build the optimizer from the same lists, units and limit everywhere"
            )
