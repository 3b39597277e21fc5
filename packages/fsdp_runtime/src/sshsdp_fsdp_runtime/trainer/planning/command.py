"""The command `sshsdp plan`."""

import contextlib
import gc
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from sshsdp_fsdp_runtime.trainer.console import say
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.planning.document import document
from sshsdp_fsdp_runtime.trainer.planning.picture import write_picture
from sshsdp_fsdp_runtime.trainer.planning.request import PlanRequest, make_plan
from sshsdp_fsdp_runtime.trainer.planning.tables import tables
from sshsdp_fsdp_runtime.trainer.planning.view import View


@dataclass(frozen=True, kw_only=True)
class PlanCommand:
    """Show what would happen on any number of ranks, without starting one and without weights.

    Who claimed what, groups, shared bytes, owners, memory and traffic, as tables, JSON or a
    picture.
    """

    request: Annotated[PlanRequest, tyro.conf.arg(name="")]
    rank: int = 0
    """Whose view of trees, chains, traffic and schedules to show."""
    microbatches: int = 1
    """Microbatches per step, for its traffic."""
    schedules: bool = False
    """List the operations of the rank, one schedule of each kind."""
    json: str | None = None
    """Write everything there as JSON instead of showing tables; - for standard output."""
    picture: Path | None = None
    """Draw data trees and shard chains there (.png, .svg or .pdf; extra `plots`)."""


def plan(arguments: Sequence[str]) -> int:
    """`sshsdp plan`; the exit status.

    Args:
        arguments: after the command's name.

    Raises:
        InputError: what the user can mend.
    """
    command = tyro.cli(PlanCommand, prog="sshsdp plan", args=list(arguments))
    with _uncollected():
        return _show(command)


def _show(command: PlanCommand) -> int:
    made = make_plan(command.request)
    if not 0 <= command.rank < made.world:
        raise InputError(f"expected --rank below {made.world}, got {command.rank}")
    if command.microbatches < 1:
        raise InputError(f"expected --microbatches >= 1, got {command.microbatches}")
    view = View(
        source=command.request.model,
        rank=command.rank,
        microbatches=command.microbatches,
        schedules=command.schedules,
    )
    if command.picture is not None:
        write_picture(made, command.rank, command.picture)
    if command.json is None:
        console = Console(highlight=False)
        for part in tables(made, view):
            console.print(part)
        return 0
    text = json.dumps(document(made, view), indent=1)
    if command.json == "-":
        say(text)
    else:
        _write(Path(command.json), text)
    return 0


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """No search for garbage: there is none among 100,000s of planned values, and it takes long."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"expected a file that can be written, got {path}: {error}") from error
