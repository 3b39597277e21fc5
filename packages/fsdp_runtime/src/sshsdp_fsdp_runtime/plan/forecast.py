"""Bytes of every buffer of ours, by role, before any of them exists (DESIGN 4.6)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sshsdp_fsdp_runtime.plan.atom import AtomPlan, WeightForm
from sshsdp_fsdp_runtime.plan.extent import (
    gradient_slot_bytes,
    staging_bytes,
    weight_slot_bytes,
)

if TYPE_CHECKING:
    from sshsdp_fsdp_runtime.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """Bytes of one role: `local` on every rank, plus `shared` once for all ranks of the host."""

    role: str
    local: int
    shared: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """The plan's buffers in bytes; equal on every rank, since live shards are even."""

    rows: tuple[ForecastRow, ...]
    world: int

    def total_bytes(self, rank: int) -> int:
        """Bytes that count for `rank`: its own buffers and its part of the shared ones."""
        shared = sum(row.shared for row in self.rows)
        return (
            sum(row.local for row in self.rows)
            + shared // self.world
            + (shared % self.world if rank == 0 else 0)
        )

    def host_bytes(self) -> int:
        """Bytes of all ranks together."""
        return sum(row.local * self.world + row.shared for row in self.rows)

    def describe(self) -> str:
        """One line per role, in MiB."""
        lines = [f"{'role':<24}{'per rank MiB':>14}{'shared MiB':>14}"]
        lines += [
            f"{row.role:<24}{row.local / 2**20:>14.2f}{row.shared / 2**20:>14.2f}"
            for row in self.rows
        ]
        return "\n".join(lines)


def forecast(plan: "Plan") -> Forecast:
    """Forecast the buffers of `plan`."""
    atoms = plan.atoms
    trainable = [atom for atom in atoms if atom.trainable]
    rows = [
        ForecastRow("weights", _weights(atoms), _aliased(atoms)),
        ForecastRow("weight slots", sum(weight_slot_bytes(plan.groups).values()), 0),
        ForecastRow("gradient slots", sum(gradient_slot_bytes(plan.groups).values()), 0),
        ForecastRow("main gradients", sum(map(_main_gradients, trainable)), 0),
        ForecastRow("main weights", sum(map(_main_weights, trainable)), 0),
        ForecastRow("optimizer state", sum(map(_state, trainable)), 0),
        ForecastRow("staging", 0, staging_bytes(plan.spec, plan.world)),
    ]
    return Forecast(tuple(rows), plan.world)


def _weights(atoms: Iterable[AtomPlan]) -> int:
    return sum(
        atom.chunk_numel(atom.degrees.zero3) * atom.weight_dtype.itemsize
        for atom in atoms
        if atom.form is not WeightForm.ALIASED
    )


def _aliased(atoms: Iterable[AtomPlan]) -> int:
    return sum(
        atom.layout.numel * atom.weight_dtype.itemsize
        for atom in atoms
        if atom.form is WeightForm.ALIASED
    )


def _main_gradients(atom: AtomPlan) -> int:
    assert atom.main_dtype is not None
    return atom.chunk_numel(atom.degrees.zero2) * atom.main_dtype.itemsize


def _main_weights(atom: AtomPlan) -> int:
    assert atom.main_dtype is not None
    return (
        atom.chunk_numel(atom.degrees.zero1) * atom.main_dtype.itemsize if atom.separate_main else 0
    )


def _state(atom: AtomPlan) -> int:
    assert atom.rule is not None
    assert atom.main_dtype is not None
    numel = atom.chunk_numel(atom.degrees.zero1)
    return sum(
        numel * (field.dtype or atom.main_dtype).itemsize for field in atom.rule.state_fields()
    )
