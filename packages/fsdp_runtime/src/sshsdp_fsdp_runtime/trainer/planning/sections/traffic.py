"""Messages and bytes of a step, within and between nodes."""

from collections.abc import Sequence

from rich.table import Table

from sshsdp_fsdp_runtime.plan.traffic import TrafficRow
from sshsdp_fsdp_runtime.trainer.planning.sections.text import nbytes_text, table


def traffic_table(rows: Sequence[TrafficRow], rank: int, microbatches: int) -> Table:
    """For a terminal."""
    noun = "microbatch" if microbatches == 1 else "microbatches"
    result = table(
        f"what rank {rank} moves in a step of {microbatches} {noun}",
        *("purpose", ">runs", ">in node:\nmessages", ">\nbytes"),
        *(">between:\nmessages", ">\nbytes"),
    )
    for row in rows:
        result.add_row(
            row.purpose,
            f"{row.runs:,}",
            f"{row.messages_within:,}",
            nbytes_text(row.bytes_within),
            f"{row.messages_between:,}",
            nbytes_text(row.bytes_between),
        )
    result.add_section()
    result.add_row(
        "together",
        f"{sum(row.runs for row in rows):,}",
        f"{sum(row.messages_within for row in rows):,}",
        nbytes_text(sum(row.bytes_within for row in rows)),
        f"{sum(row.messages_between for row in rows):,}",
        nbytes_text(sum(row.bytes_between for row in rows)),
    )
    return result
