"""Runtime groups and their atoms; groups that differ in their number only are one row."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

from sshsdp_fsdp_runtime.plan import AtomPlan, GroupPlan, Plan
from sshsdp_fsdp_runtime.trainer.planning.dtypes import dtype_name
from sshsdp_fsdp_runtime.trainer.planning.folding import fold_names
from sshsdp_fsdp_runtime.trainer.planning.sections.text import (
    count_text,
    degrees_text,
    nbytes_text,
    table,
)


@dataclass(frozen=True, slots=True)
class AtomRow:
    """One atom of the groups of a row.

    Attributes:
        name: of the first group's atom.
        tensors: members.
        degrees: zero3,zero2,zero1.
        weight_dtype: dtype of w and g'.
        main_dtype: dtype of main weights and gradients; None if frozen.
        rule: the update rule; None if frozen.
        form: how full weights come about.
        elements: of the list, padding included.
        padding: elements that belong to no tensor.
        nbytes: of the list of w.
    """

    name: str
    tensors: int
    degrees: str
    weight_dtype: str
    main_dtype: str | None
    rule: str | None
    form: str
    elements: int
    padding: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Groups with equal atoms.

    Attributes:
        modules: their modules, folded.
        count: how many groups.
        slots: the buffers that they take turns with.
        atoms: of each of them.
    """

    modules: tuple[str, ...]
    count: int
    slots: tuple[int, ...]
    atoms: tuple[AtomRow, ...]


def fold_groups(groups: Iterable[GroupPlan]) -> tuple[tuple[GroupPlan, ...], ...]:
    """Groups with equal atoms together, in the order of the first of each."""
    alike: dict[tuple[object, ...], list[GroupPlan]] = {}
    for group in groups:
        key = tuple(_content(group, atom) for atom in group.atoms)
        alike.setdefault(key, []).append(group)
    return tuple(map(tuple, alike.values()))


def group_rows(plan: Plan) -> tuple[GroupRow, ...]:
    """One row per kind of group, in the order of the forward pass."""
    return tuple(
        GroupRow(
            tuple(fold.pattern for fold in fold_names(group.label for group in alike)),
            len(alike),
            tuple(sorted({group.slot for group in alike})),
            tuple(map(atom_row, alike[0].atoms)),
        )
        for alike in fold_groups(plan.groups)
    )


def group_table(rows: tuple[GroupRow, ...]) -> Table:
    """For a terminal."""
    result = table(
        "groups and atoms",
        *("group", ">groups", "slots", ">tensors", "degrees", "w", "main", "update"),
        *("weights are", ">elements", ">padding", ">list of w"),
    )
    for row in rows:
        head = ("\n".join(row.modules), f"{row.count:,}", ",".join(map(str, row.slots)))
        for atom in row.atoms:
            result.add_row(
                *head,
                f"{atom.tensors:,}",
                atom.degrees,
                atom.weight_dtype,
                atom.main_dtype or "-",
                atom.rule or "frozen",
                atom.form,
                count_text(atom.elements),
                f"{atom.padding / max(atom.elements, 1):.2%}",
                nbytes_text(atom.nbytes),
            )
            head = ("", "", "")
    return result


def _content(group: GroupPlan, atom: AtomPlan) -> tuple[object, ...]:
    """What an atom is, apart from the name of its module and its number."""
    start = len(group.module) + 1 if group.module else 0
    return (
        *(atom.degrees, atom.weight_dtype, atom.main_dtype, atom.rule_index, atom.form),
        *(atom.layout.numel, atom.layout.padding),
        tuple((parameter.name[start:], parameter.shape) for parameter in atom.parameters),
    )


def atom_row(atom: AtomPlan) -> AtomRow:
    """What a row says of one atom."""
    return AtomRow(
        name=atom.name,
        tensors=len(atom.parameters),
        degrees=degrees_text(atom.degrees),
        weight_dtype=dtype_name(atom.weight_dtype),
        main_dtype=None if atom.main_dtype is None else dtype_name(atom.main_dtype),
        rule=None if atom.rule is None else type(atom.rule).__name__,
        form=atom.form.value,
        elements=atom.layout.numel,
        padding=atom.layout.padding,
        nbytes=atom.layout.numel * atom.weight_dtype.itemsize,
    )
