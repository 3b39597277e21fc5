"""Bytes per rank by role, and the formula behind those that rest between steps."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from sshsdp_fsdp_runtime.plan import Forecast, Plan
from sshsdp_fsdp_runtime.plan.resting import RestingTerm, resting_terms
from sshsdp_fsdp_runtime.trainer.planning.sections.text import (
    count_text,
    degrees_text,
    nbytes_text,
    table,
)


@dataclass(frozen=True, slots=True)
class FormulaRow:
    """Resting bytes of all lists with the same degrees and dtypes.

    Attributes:
        degrees: zero3,zero2,zero1.
        elements: of their lists, padding included.
        terms: bytes per element and the degree that divides them.
        nbytes: on one rank.
    """

    degrees: str
    elements: int
    terms: tuple[RestingTerm, ...]
    nbytes: int

    @property
    def per_element(self) -> float:
        """Bytes per element on one rank."""
        return sum(term.nbytes / term.divisor for term in self.terms)

    @property
    def text(self) -> str:
        """``2/32 + 4/32``: bytes over degrees."""
        return " + ".join(f"{term.nbytes}/{term.divisor}" for term in self.terms)


def formula_rows(plan: Plan) -> tuple[FormulaRow, ...]:
    """One row per kind of list."""
    elements: dict[tuple[str, tuple[RestingTerm, ...]], int] = {}
    for atom in plan.atoms:
        key = (degrees_text(atom.degrees), resting_terms(atom))
        elements[key] = elements.get(key, 0) + atom.layout.numel
    return tuple(
        FormulaRow(
            degrees, numel, terms, sum(term.nbytes * numel // term.divisor for term in terms)
        )
        for (degrees, terms), numel in elements.items()
    )


def formula_table(rows: Sequence[FormulaRow]) -> Table:
    """For a terminal."""
    result = table(
        "what rests between steps: bytes per element, over the degree that divides them",
        *("=degrees", ">elements", "formula", "terms", ">per element", ">per rank"),
    )
    for row in rows:
        result.add_row(
            row.degrees,
            count_text(row.elements),
            row.text,
            " + ".join(term.role for term in row.terms),
            f"{row.per_element:.4g} B",
            nbytes_text(row.nbytes),
        )
    return result


def memory_table(forecast: Forecast, rank: int) -> Table:
    """The plan's forecast, for a terminal."""
    result = table("memory by role", "role", ">on every rank", ">once per node")
    for row in forecast.rows:
        result.add_row(row.role, nbytes_text(row.local), nbytes_text(row.shared))
    result.add_section()
    result.add_row(
        f"rank {rank}, with its part of what its node shares",
        nbytes_text(forecast.total_bytes(rank)),
        "",
    )
    result.add_row("all ranks together", nbytes_text(forecast.host_bytes()), "")
    return result
