"""Data trees: which field of an atom lies where on a rank, and whose bytes it shares."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.tree import Tree

from sshsdp_fsdp_runtime.plan import AtomPlan, Field, Plan, Span
from sshsdp_fsdp_runtime.plan.alike import group_kinds
from sshsdp_fsdp_runtime.trainer.planning.dtypes import dtype_name
from sshsdp_fsdp_runtime.trainer.planning.sections.groups import folded_labels
from sshsdp_fsdp_runtime.trainer.planning.sections.text import nbytes_text

_WORDS = {
    Field.WEIGHTS: "w, full",
    Field.SHARD: "w at ZeRO-3",
    Field.OWN: "w at ZeRO-1",
    Field.MAIN_WEIGHT: "main weight at ZeRO-1",
    Field.GRADIENTS: "g', full",
    Field.ACCUMULATOR: "sum of g' at ZeRO-2",
    Field.MAIN_GRAD: "main gradient at ZeRO-1",
}


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field of an atom on one rank.

    Attributes:
        atom: the atom, the first of those that are alike.
        field: what it is.
        arena: the memory it lies in.
        offset: in bytes from the arena's start.
        nbytes: its length.
        dtype: of its elements.
        inside: the field whose bytes these are; None if it has bytes of its own.
    """

    atom: str
    field: str
    arena: str
    offset: int
    nbytes: int
    dtype: str
    inside: str | None


def field_rows(plan: Plan, rank: int) -> tuple[FieldRow, ...]:
    """The fields of every kind of atom on `rank`, outer ones before those inside."""
    return tuple(
        row
        for kind in group_kinds(plan.groups)
        for atom in kind.first.atoms
        for row in _atom_fields(plan, atom, rank)
    )


def field_words(field: str) -> str:
    """A field in the paper's terms."""
    return _WORDS[Field(field)]


def field_tree(plan: Plan, rows: Sequence[FieldRow], rank: int) -> Tree:
    """For a terminal: what hangs below something shares its bytes."""
    names = {
        atom.name: ", ".join(folded_labels(kind))
        for kind in group_kinds(plan.groups)
        for atom in kind.first.atoms
    }
    result = Tree(f"[bold]data trees on rank {rank}[/]: what hangs below shares the bytes above")
    branches: dict[tuple[str, str | None], Tree] = {}
    for row in rows:
        top = branches.get((row.atom, None))
        if top is None:
            top = result.add(f"atom {row.atom} [dim]({names[row.atom]})[/]")
            branches[row.atom, None] = top
        text = f"{field_words(row.field)}: {row.dtype}, {nbytes_text(row.nbytes)}"
        place = f" in {row.arena} at byte {row.offset:,}" if row.inside is None else ""
        whole = row.inside is not None and row.nbytes == _nbytes(rows, row.atom, row.inside)
        branches[row.atom, row.field] = branches[row.atom, row.inside].add(
            text + place + (" [dim](the same bytes)[/]" if whole else "")
        )
    return result


def _atom_fields(plan: Plan, atom: AtomPlan, rank: int) -> list[FieldRow]:
    spans = {field: plan.storage.span(atom, field, rank) for field in Field}
    there = {field: span for field, span in spans.items() if span is not None}
    # Outer fields first; of equal ones the one that has bytes of its own.
    order = sorted(
        there, key=lambda f: (-there[f].nbytes, not plan.storage.allocated(atom, f), _rank_of(f))
    )
    rows = []
    for index, field in enumerate(order):
        span = there[field]
        around = [outer for outer in order[:index] if _holds(there[outer], span)]
        rows.append(
            FieldRow(
                atom=atom.name,
                field=field.value,
                arena=span.arena,
                offset=span.offset,
                nbytes=span.nbytes,
                dtype=dtype_name(span.dtype),
                inside=around[-1].value if around else None,
            )
        )
    return rows


def _rank_of(field: Field) -> int:
    return list(Field).index(field)


def _holds(outer: Span, inner: Span) -> bool:
    return (
        outer.arena == inner.arena
        and outer.offset <= inner.offset
        and inner.offset + inner.nbytes <= outer.offset + outer.nbytes
    )


def _nbytes(rows: Sequence[FieldRow], atom: str, field: str) -> int:
    return next(row.nbytes for row in rows if (row.atom, row.field) == (atom, field))
