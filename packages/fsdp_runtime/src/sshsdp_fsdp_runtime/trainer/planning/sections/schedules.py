"""Schedules, operation by operation, as one rank runs them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.tree import Tree

from sshsdp_fsdp_runtime.plan import Plan
from sshsdp_fsdp_runtime.plan.traffic import step_uses

_HEAD, _TAIL = 6, 2  # operations of a phase that are shown; JSON has all


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """One phase of a schedule.

    Attributes:
        purpose: what for.
        owner: the group or atom, the first of those that are alike.
        alike: how many of them there are.
        times: runs of each in a step.
        phase: name of the phase.
        operations: in the order in which the rank does them.
    """

    purpose: str
    owner: str
    alike: int
    times: int
    phase: str
    operations: tuple[str, ...]


def schedule_rows(plan: Plan, rank: int, microbatches: int) -> Iterator[ScheduleRow]:
    """The phases of all schedules of a step, one of each kind."""
    for use in step_uses(plan, microbatches):
        for phase in use.schedule.phases:
            yield ScheduleRow(
                use.purpose,
                use.owner,
                use.alike,
                use.times,
                phase,
                tuple(map(str, use.schedule.ops(phase, rank))),
            )


def schedule_tree(rows: Sequence[ScheduleRow], rank: int) -> Tree:
    """For a terminal."""
    result = Tree(f"[bold]schedules of rank {rank}[/]: one of each kind")
    branches: dict[tuple[str, str], Tree] = {}
    for row in rows:
        key = (row.purpose, row.owner)
        if key not in branches:
            which = f" of {row.owner}" if row.owner else ""
            count = f", {row.alike} alike" if row.alike > 1 else ""
            branches[key] = result.add(f"{row.purpose}{which}{count}, {row.times} times a step")
        phase = branches[key].add(f"{row.phase}: {len(row.operations):,} operations")
        hidden = len(row.operations) - _HEAD - _TAIL
        shown = row.operations if hidden < 2 else row.operations[:_HEAD]
        for operation in shown:
            phase.add(operation)
        if hidden >= 2:
            phase.add(f"... {hidden:,} more")
            for operation in row.operations[-_TAIL:]:
                phase.add(operation)
    return result
