"""Rules, and which parameters each of them claimed."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from sshsdp_fsdp_runtime.plan import Claim, Plan
from sshsdp_fsdp_runtime.trainer.planning.dtypes import dtype_name
from sshsdp_fsdp_runtime.trainer.planning.folding import Fold, fold_names
from sshsdp_fsdp_runtime.trainer.planning.sections.text import (
    count_text,
    degrees_text,
    folds_text,
    table,
)

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """What the rules of one kind decided alike for some parameters.

    Attributes:
        kind: sharding, format or update.
        decision: the degrees, the dtype of w, the update rule.
        tensors: how many parameters.
        elements: of all of them.
        names: the parameters, folded.
    """

    kind: str
    decision: str
    tensors: int
    elements: int
    names: tuple[Fold, ...]


def claim_rows(plan: Plan) -> tuple[ClaimRow, ...]:
    """One row per kind and decision, in the order of the parameters."""
    claims: dict[tuple[str, str], list[Claim]] = {}
    for claim in plan.claims:
        for key in _decisions(plan, claim):
            claims.setdefault(key, []).append(claim)
    kinds = ("sharding", "format", "update")
    folded: dict[tuple[str, ...], tuple[Fold, ...]] = {}  # many rules claim the same parameters

    def fold(members: list[Claim]) -> tuple[Fold, ...]:
        names = tuple(claim.parameter.name for claim in members)
        if names not in folded:
            folded[names] = fold_names(names)
        return folded[names]

    return tuple(
        ClaimRow(
            kind,
            decision,
            len(members),
            sum(claim.parameter.numel for claim in members),
            fold(members),
        )
        for (kind, decision), members in sorted(claims.items(), key=lambda i: kinds.index(i[0][0]))
    )


def claim_table(rows: tuple[ClaimRow, ...]) -> Table:
    """For a terminal."""
    result = table(
        "rules and who claimed what", "=kind", ">tensors", ">elements", "decision, and for whom"
    )
    for row in rows:
        result.add_row(
            row.kind,
            f"{row.tensors:,}",
            count_text(row.elements),
            Text.assemble((row.decision, "bold"), "\n", folds_text(row.names, _SHOWN)),
        )
    return result


def _decisions(plan: Plan, claim: Claim) -> Iterator[tuple[str, str]]:
    yield "sharding", f"zero3,zero2,zero1 = {degrees_text(claim.degrees)}"
    yield "format", f"compute in {dtype_name(claim.weight_dtype)}"
    yield "update", "frozen" if claim.update is None else plan.updates[claim.update]
