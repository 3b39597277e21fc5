"""A plan as tables on a terminal."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from sshsdp_fsdp_runtime.plan import Plan
from sshsdp_fsdp_runtime.plan.traffic import step_traffic
from sshsdp_fsdp_runtime.trainer.planning.sections import (
    chain_rows,
    chain_table,
    claim_rows,
    claim_table,
    field_rows,
    field_tree,
    formula_rows,
    formula_table,
    group_rows,
    group_table,
    memory_table,
    pack_rows,
    pack_table,
    schedule_rows,
    schedule_tree,
    traffic_table,
    update_rows,
    update_table,
)
from sshsdp_fsdp_runtime.trainer.planning.sections.text import count_text
from sshsdp_fsdp_runtime.trainer.planning.view import View


def tables(plan: Plan, view: View) -> Iterator[RenderableType]:
    """Section by section."""
    rank, microbatches = view.rank, view.microbatches
    yield _head(plan, view.source)
    yield claim_table(claim_rows(plan))
    yield group_table(group_rows(plan))
    if plan.packs:
        yield pack_table(pack_rows(plan))
    yield field_tree(plan, field_rows(plan, rank), rank)
    yield Text()
    yield chain_table(chain_rows(plan, rank), rank)
    yield memory_table(plan.forecast(), rank)
    yield formula_table(formula_rows(plan))
    yield traffic_table(step_traffic(plan, rank, microbatches), rank, microbatches)
    yield update_table(update_rows(plan))
    if view.schedules:
        yield schedule_tree(list(schedule_rows(plan, rank, microbatches)), rank)


def _head(plan: Plan, source: str) -> Text:
    elements = sum(parameter.numel for parameter in plan.spec.parameters)
    topology = plan.topology
    text = Text()
    text.append(source, style="bold")
    text.append(f": {count_text(elements)} elements in {len(plan.spec.parameters):,} tensors\n")
    text.append(
        f"{plan.world:,} ranks: {topology.nodes:,} x {topology.ranks_per_node:,} (nodes x ranks"
        f" per node), full weights {plan.options.form}, {plan.options.slots} slots\n"
    )
    text.append(f"signature {plan.signature()[:16]}\n", style="dim")
    return text
