"""Update rules: what they work on at once, who does the work, and what moves for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from sshsdp_fsdp_runtime.plan import Plan
from sshsdp_fsdp_runtime.trainer.planning.sections.text import nbytes_text, table


@dataclass(frozen=True, slots=True)
class UpdateRow:
    """The plan of one update rule.

    Attributes:
        rule: its name.
        units: what it works on at once, by name.
        tensors: how many it updates.
        pieces: units of all of them; 0 where it works on elements.
        cut: those that more than one rank holds, so that parts of them travel.
        load: work of the busiest rank over the average one.
        moved: bytes that travel in a step between the ranks of one set of replicas.
        least: fewest that could, with these layouts.
        reserved: bytes of temporaries on every rank.
    """

    rule: str
    units: tuple[str, ...]
    tensors: int
    pieces: int
    cut: int
    load: float
    moved: int
    least: int
    reserved: int


def update_rows(plan: Plan) -> tuple[UpdateRow, ...]:
    """One row per rule, in the order of first use."""
    rows = []
    for made in plan.update_plans:
        members = [member for each in made.lists for member in each.members]
        moved, least = made.moved()
        total = sum(made.loads)
        rows.append(
            UpdateRow(
                rule=made.rule.name,
                units=tuple(dict.fromkeys(member.unit.name for member in members))
                if made.units
                else (),
                tensors=len(members),
                pieces=len(made.units),
                cut=sum(unit.cut for unit in made.units),
                load=max(made.loads, default=0) * len(made.loads) / total if total else 1.0,
                moved=moved,
                least=least,
                reserved=made.nbytes,
            )
        )
    return tuple(rows)


def update_table(rows: Sequence[UpdateRow]) -> Table:
    """For a terminal."""
    result = table(
        "updates, once per step",
        *("rule", "works on", ">tensors", ">units", ">cut", ">load", ">moved", ">reserved"),
    )
    for row in rows:
        result.add_row(
            row.rule,
            "\n".join(row.units) or "elements",
            f"{row.tensors:,}",
            f"{row.pieces:,}",
            f"{row.cut:,}",
            f"{row.load:.2f} x",
            nbytes_text(row.moved),
            nbytes_text(row.reserved),
        )
    return result
