"""A plan as JSON: everything that the tables show, and what they leave out."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sshsdp_fsdp_runtime.plan import GroupPlan, ModelSpec, Plan
from sshsdp_fsdp_runtime.plan.traffic import step_traffic
from sshsdp_fsdp_runtime.trainer.planning.dtypes import dtype_name
from sshsdp_fsdp_runtime.trainer.planning.sections import (
    chain_rows,
    claim_rows,
    field_rows,
    formula_rows,
    group_rows,
    pack_rows,
    schedule_rows,
    update_rows,
)
from sshsdp_fsdp_runtime.trainer.planning.sections.groups import atom_row
from sshsdp_fsdp_runtime.trainer.planning.view import View
from sshsdp_shardchain import Level

FORMAT = 1  # raised when a key changes its meaning


def document(plan: Plan, view: View) -> dict[str, Any]:
    """The plan as JSON values; bytes and elements are integers."""
    forecast = plan.forecast()
    rank = view.rank
    content: dict[str, Any] = {
        "format": FORMAT,
        "signature": plan.signature(),
        "model": _model(plan.spec, view.source),
        "topology": {"world": plan.world, **asdict(plan.topology)},
        "options": asdict(plan.options),
        "rank": rank,
        "claims": [asdict(row) for row in claim_rows(plan)],
        "alike": [asdict(row) for row in group_rows(plan)],
        "packs": [asdict(row) for row in pack_rows(plan)],
        "groups": [_group(group, rank) for group in plan.groups],
        "arenas": [asdict(arena) for arena in plan.storage.arenas],
        "fields": [asdict(row) for row in field_rows(plan, rank)],
        "chains": [asdict(row) for row in chain_rows(plan, rank)],
        "memory": {
            "rows": [asdict(row) for row in forecast.rows],
            "rank_bytes": forecast.total_bytes(rank),
            "all_bytes": forecast.host_bytes(),
            "resting": [
                {**asdict(row), "formula": row.text, "per_element": row.per_element}
                for row in formula_rows(plan)
            ],
        },
        "traffic": {
            "microbatches": view.microbatches,
            "rows": [asdict(row) for row in step_traffic(plan, rank, view.microbatches)],
        },
    }
    content["updates"] = [asdict(row) for row in update_rows(plan)]
    if view.schedules:
        rows = schedule_rows(plan, rank, view.microbatches)
        content["schedules"] = [asdict(row) for row in rows]
    return content


def _model(spec: ModelSpec, source: str) -> dict[str, Any]:
    return {
        "source": source,
        "tensors": len(spec.parameters),
        "elements": sum(parameter.numel for parameter in spec.parameters),
        "trainable_elements": sum(p.numel for p in spec.parameters if p.trainable),
        "buffers": [
            {"name": name, "shape": shape, "dtype": dtype_name(dtype)}
            for name, shape, dtype in spec.buffers
        ],
    }


def _group(group: GroupPlan, rank: int) -> dict[str, Any]:
    atoms: Sequence[dict[str, Any]] = [
        {
            **asdict(atom_row(atom)),
            "members": [
                {
                    "name": parameter.name,
                    "aliases": parameter.aliases,
                    "shape": parameter.shape,
                    "offset": placement.offset,
                    "elements": placement.numel,
                }
                for parameter in atom.parameters
                for placement in (atom.layout.placement(parameter.name),)
            ],
            "ranges": {
                level.value: asdict(atom.layout.chain.range(level, rank)) for level in Level
            },
        }
        for atom in group.atoms
    ]
    return {"module": group.label, "slot": group.slot, "atoms": atoms}
