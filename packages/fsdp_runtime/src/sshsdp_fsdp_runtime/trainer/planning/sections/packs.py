"""Packs: which layers are computed as one, and which bytes they take."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from sshsdp_fsdp_runtime.plan import Plan
from sshsdp_fsdp_runtime.plan.alike import group_kinds
from sshsdp_fsdp_runtime.plan.operands import PackedOperand, packed_operands
from sshsdp_fsdp_runtime.trainer.planning.sections.groups import folded_labels
from sshsdp_fsdp_runtime.trainer.planning.sections.text import nbytes_text, table


@dataclass(frozen=True, slots=True)
class PackRow:
    """One operand of packed layers, in every group of a kind.

    Attributes:
        groups: that have it, folded.
        count: how many groups.
        names: of the parameters in the first group, in order.
        rows: of each in the operand.
        columns: of the operand; 1 of biases.
        atom: the first group's atom in whose lists they lie.
        offsets: of each from the start of a list of w or g', in bytes.
        nbytes: of each.
    """

    groups: tuple[str, ...]
    count: int
    names: tuple[str, ...]
    rows: tuple[int, ...]
    columns: int
    atom: str
    offsets: tuple[int, ...]
    nbytes: tuple[int, ...]


def pack_rows(plan: Plan) -> tuple[PackRow, ...]:
    """One row per operand and kind of group, in the order of the forward pass."""
    return tuple(
        _row(operand, folded_labels(kind), len(kind.groups))
        for kind in group_kinds(plan.groups)
        for operand in packed_operands(kind.first)
    )


def pack_table(rows: Sequence[PackRow]) -> Table:
    """For a terminal."""
    result = table(
        "packs: layers that are computed as one",
        *("group", ">groups", "members", ">rows", ">columns"),
        *("list of", ">from byte", ">bytes"),
    )
    for row in rows:
        result.add_row(
            "\n".join(row.groups),
            f"{row.count:,}",
            "\n".join(row.names),
            "\n".join(f"{rows:,}" for rows in row.rows),
            f"{row.columns:,}",
            row.atom,
            "\n".join(f"{offset:,}" for offset in row.offsets),
            "\n".join(map(nbytes_text, row.nbytes)),
        )
    return result


def _row(operand: PackedOperand, groups: tuple[str, ...], count: int) -> PackRow:
    pack = operand.pack
    return PackRow(
        groups=groups,
        count=count,
        names=operand.names,
        rows=pack.rows,
        columns=1 if operand.names == pack.biases else pack.columns,
        atom=operand.atom,
        offsets=operand.offsets,
        nbytes=operand.nbytes,
    )
