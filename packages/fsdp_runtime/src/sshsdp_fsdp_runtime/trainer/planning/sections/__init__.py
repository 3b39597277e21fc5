"""What a plan says, section by section: each a list of records, and how a terminal shows them."""

from sshsdp_fsdp_runtime.trainer.planning.sections.chains import ChainRow, chain_rows, chain_table
from sshsdp_fsdp_runtime.trainer.planning.sections.claims import ClaimRow, claim_rows, claim_table
from sshsdp_fsdp_runtime.trainer.planning.sections.fields import FieldRow, field_rows, field_tree
from sshsdp_fsdp_runtime.trainer.planning.sections.groups import (
    AtomRow,
    GroupRow,
    group_rows,
    group_table,
)
from sshsdp_fsdp_runtime.trainer.planning.sections.memory import (
    FormulaRow,
    formula_rows,
    formula_table,
    memory_table,
)
from sshsdp_fsdp_runtime.trainer.planning.sections.packs import PackRow, pack_rows, pack_table
from sshsdp_fsdp_runtime.trainer.planning.sections.schedules import (
    ScheduleRow,
    schedule_rows,
    schedule_tree,
)
from sshsdp_fsdp_runtime.trainer.planning.sections.traffic import traffic_table
from sshsdp_fsdp_runtime.trainer.planning.sections.updates import (
    UpdateRow,
    update_rows,
    update_table,
)

__all__ = [
    "AtomRow",
    "ChainRow",
    "ClaimRow",
    "FieldRow",
    "FormulaRow",
    "GroupRow",
    "PackRow",
    "ScheduleRow",
    "UpdateRow",
    "chain_rows",
    "chain_table",
    "claim_rows",
    "claim_table",
    "field_rows",
    "field_tree",
    "formula_rows",
    "formula_table",
    "group_rows",
    "group_table",
    "memory_table",
    "pack_rows",
    "pack_table",
    "schedule_rows",
    "schedule_tree",
    "traffic_table",
    "update_rows",
    "update_table",
]
