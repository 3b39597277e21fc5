"""Bytes of every buffer of ours, by role, before any of them exists (DESIGN 4.6)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sshsdp_fsdp_runtime.plan.atom import AtomPlan
from sshsdp_updates import ROW, TENSOR

if TYPE_CHECKING:
    from sshsdp_fsdp_runtime.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """Bytes of one role: `local` on every rank, plus `shared` once for all ranks of a node."""

    role: str
    local: int
    shared: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """The plan's buffers in bytes; equal on every rank, since live shards are even.

    All are exact but for "update scratch", which is the most that a rank allocates beside them
    while an update runs.

    Attributes:
        rows: one per role.
        nodes: number of nodes.
        ranks_per_node: ranks that share a node's shared bytes.
    """

    rows: tuple[ForecastRow, ...]
    nodes: int
    ranks_per_node: int

    def total_bytes(self, rank: int) -> int:
        """Bytes that count for `rank`: its own buffers and its part of the shared ones."""
        shared = sum(row.shared for row in self.rows)
        part, rest = divmod(shared, self.ranks_per_node)
        return (
            sum(row.local for row in self.rows)
            + part
            + (rest if rank % self.ranks_per_node == 0 else 0)
        )

    def host_bytes(self) -> int:
        """Bytes of all ranks together."""
        return self.nodes * sum(row.local * self.ranks_per_node + row.shared for row in self.rows)

    def describe(self) -> str:
        """One line per role, in MiB."""
        lines = [f"{'role':<24}{'per rank MiB':>14}{'shared MiB':>14}"]
        lines += [
            f"{row.role:<24}{row.local / 2**20:>14.2f}{row.shared / 2**20:>14.2f}"
            for row in self.rows
        ]
        return "\n".join(lines)


ROLES = {
    "weights": "weights",
    "shared_weights": "weights",
    "shards": "weights",
    "weights.slot": "weight slots",
    "gradients.slot": "gradient slots",
    "accumulators": "gradient sums",
    "main_grads": "main gradients",
    "main_weights": "main weights",
    "partials": "partial sums",
    "temporaries": "update temporaries",
    "votes": "votes",
}  # what each arena of the storage is for; slots without their number

_STATE = "optimizer state"

_SCRATCH = "update scratch"  # no buffer: what calls of an update's stages allocate and free again


def forecast(plan: "Plan") -> Forecast:
    """Forecast the buffers of `plan`."""
    local = dict.fromkeys((*ROLES.values(), _SCRATCH, _STATE), 0)
    shared = dict(local)
    for arena in plan.storage.arenas:
        role = ROLES[arena.name.rstrip("0123456789")]
        (shared if arena.shared else local)[role] += arena.nbytes
    # One rule's stages run after another's, and a stage's calls one after another.
    local[_SCRATCH] = max((made.scratch_nbytes for made in plan.update_plans), default=0)
    local[_STATE] = sum(_state(atom) for atom in plan.atoms if atom.trainable)
    topology = plan.topology
    return Forecast(
        tuple(ForecastRow(role, nbytes, shared[role]) for role, nbytes in local.items()),
        topology.nodes,
        topology.ranks_per_node,
    )


def _state(atom: AtomPlan) -> int:
    assert atom.rule is not None
    assert atom.main_dtype is not None
    numel = atom.chunk_numel(atom.degrees.zero1)
    fields = atom.rule.state_fields()
    rows = sum(
        unit.grid(parameter.shape).rows
        for parameter, unit in zip(atom.parameters, atom.units, strict=True)
        if any(field.unit == ROW for field in fields)
    )
    counts = {ROW: rows, TENSOR: len(atom.parameters)}
    return sum(
        counts.get(field.unit, numel) * (field.dtype or atom.main_dtype).itemsize
        for field in fields
    )
