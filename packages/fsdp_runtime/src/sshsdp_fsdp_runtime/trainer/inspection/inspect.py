"""The command `sshsdp inspect`."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sshsdp_fsdp_runtime.checkpoint import is_checkpoint, newest_checkpoint
from sshsdp_fsdp_runtime.trainer.console import complain
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.inspection.facts import (
    CheckpointFacts,
    TensorRow,
    checkpoint_facts,
)
from sshsdp_fsdp_runtime.trainer.inspection.output import show, write_json
from sshsdp_fsdp_runtime.trainer.inspection.saved_tensors import Saved
from sshsdp_fsdp_runtime.trainer.planning.sections.text import nbytes_text, table

_DAMAGED = 2


@dataclass(frozen=True, kw_only=True)
class InspectCommand:
    """Show what is in a checkpoint: who saved it, which tensors, whether files and values are good.

    Takes a checkpoint, also one of another program that uses torch.distributed.checkpoint, or a run
    or a folder of checkpoints, of which the newest is shown.
    """

    path: Annotated[Path, tyro.conf.Positional]
    """Folder."""
    quick: bool = False
    """Compare lengths of files only, and look at no values."""
    json: str | None = None
    """Write it there as JSON instead of showing tables; - for standard output."""


def inspect(arguments: Sequence[str]) -> int:
    """`sshsdp inspect`; the exit status: 2 for a damaged checkpoint.

    Args:
        arguments: after the command's name.

    Raises:
        InputError: what the user can mend.
    """
    command = tyro.cli(InspectCommand, prog="sshsdp inspect", args=list(arguments))
    facts = checkpoint_facts(Saved.open(find_checkpoint(command.path)), contents=not command.quick)
    if command.json is not None:
        write_json(_document(facts), command.json)
    else:
        show(_tables(facts))
    if facts.damage is not None:
        complain(f"error: {facts.damage}")
        return _DAMAGED
    return 0


def find_checkpoint(path: Path) -> Path:
    """The checkpoint at `path`, or the newest one below it.

    Raises:
        InputError: there is none.
    """
    if path.is_dir() and is_checkpoint(path):
        return path
    for folder in (path / "checkpoints", path):
        newest = newest_checkpoint(folder)
        if newest is not None:
            return newest
    raise InputError(f"expected a checkpoint, or a folder of some, got {path}; check the path")


def _document(facts: CheckpointFacts) -> dict[str, Any]:
    rows = [
        {**asdict(row), "rms": None if row.health is None else row.health.rms} for row in facts.rows
    ]
    return {**asdict(facts), "rows": rows}


def _tables(facts: CheckpointFacts) -> Iterator[RenderableType]:
    yield _head(facts)
    for kind in dict.fromkeys(row.kind for row in facts.rows):
        yield _kind_table(kind, [row for row in facts.rows if row.kind == kind])
    for name in facts.sick:
        yield Text(f"not finite: {name}", style="bold red")


def _head(facts: CheckpointFacts) -> Text:
    text = Text()
    text.append(facts.path, style="bold")
    text.append(f": {nbytes_text(facts.nbytes)}")
    if facts.format is None:
        text.append(", saved by another program with torch.distributed.checkpoint\n")
    else:
        step = "no step" if facts.step is None else f"step {facts.step:,}"
        text.append(f", {step}, format {facts.format}\n")
        text.append(f"saved {facts.saved_at} by {_origin(facts)}\n")
        if facts.values:
            text.append(f"values: {', '.join(map(str, facts.values))}\n")
    if facts.damage is not None:
        text.append("files: damaged\n", style="bold red")
    elif facts.format is not None:
        text.append(f"files: whole ({facts.checked})\n")
    return text


def _origin(facts: CheckpointFacts) -> str:
    layout = facts.layout
    ranks = "1 rank" if facts.world == 1 else f"{facts.world} ranks"
    if layout.get("nodes", 1) > 1:
        ranks += f" on {layout['nodes']} nodes"
    degrees = [
        f"{','.join(map(str, row['degrees']))} ({row['tensors']:,} tensors)"
        for row in layout.get("degrees", ())
    ]
    return f"{ranks}, degrees {'; '.join(degrees)}" if degrees else ranks


def _kind_table(kind: str, rows: Sequence[TensorRow]) -> Table:
    looked = any(row.health is not None for row in rows)
    health = (">rms", ">largest", ">inf, nan") if looked else ()
    result = table(kind, "tensors", ">bytes", *health)
    for row in rows:
        shape = " x ".join(map(str, row.shape)) or "scalar"
        count = f"{row.tensors:,} of " if row.tensors > 1 else ""
        names = Text.assemble((row.names, "bold"), f"\n{count}{shape} {row.dtype}")
        result.add_row(names, nbytes_text(row.nbytes), *(_health(row) if looked else ()))
    return result


def _health(row: TensorRow) -> tuple[str, str, str]:
    if row.health is None:
        return "", "", ""
    lost = f"{row.health.not_finite:,}" if row.health.not_finite else "-"
    return f"{row.health.rms:.2g}", f"{row.health.largest:.2g}", lost
