"""Runtime groups and their atoms; groups that differ in their number only are one row."""

from dataclasses import dataclass

from rich.table import Table

from sshsdp_fsdp_runtime.plan import AtomPlan, Plan
from sshsdp_fsdp_runtime.plan.alike import GroupKind, group_kinds
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


def folded_labels(kind: GroupKind) -> tuple[str, ...]:
    """The names of the groups of a kind, as patterns."""
    return tuple(fold.pattern for fold in fold_names(group.label for group in kind.groups))


def group_rows(plan: Plan) -> tuple[GroupRow, ...]:
    """One row per kind of group, in the order of the forward pass."""
    return tuple(
        GroupRow(
            folded_labels(kind),
            len(kind.groups),
            tuple(sorted({group.slot for group in kind.groups})),
            tuple(map(atom_row, kind.first.atoms)),
        )
        for kind in group_kinds(plan.groups)
    )


def group_table(rows: tuple[GroupRow, ...]) -> Table:
    """For a terminal."""
    result = table(
        "groups and atoms", "group", ">groups", "atoms of each", ">elements", ">list of w"
    )
    for row in rows:
        slots = ",".join(map(str, row.slots))
        noun = "slot" if len(row.slots) == 1 else "slots"
        head = ("\n".join((*row.modules, f"{noun} {slots}")), f"{row.count:,}")
        for atom in row.atoms:
            result.add_row(*head, _words(atom), count_text(atom.elements), nbytes_text(atom.nbytes))
            head = ("", "")
    return result


def _words(atom: AtomRow) -> str:
    noun = "tensor" if atom.tensors == 1 else "tensors"
    main = "frozen" if atom.main_dtype is None else f"main {atom.main_dtype}, {atom.rule}"
    return (
        f"{atom.tensors:,} {noun} over {atom.degrees}, "
        f"{atom.padding / max(atom.elements, 1):.2%} padding\n"
        f"w {atom.weight_dtype} {atom.form}, {main}"
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
