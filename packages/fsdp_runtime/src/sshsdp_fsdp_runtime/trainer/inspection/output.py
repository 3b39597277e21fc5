"""The two forms of output: tables for people, JSON for programs."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from sshsdp_fsdp_runtime.trainer.console import say
from sshsdp_fsdp_runtime.trainer.errors import InputError


def show(parts: Iterable[RenderableType]) -> None:
    """Print tables and lines; lines are not wrapped, so that paths can be copied."""
    console = Console(highlight=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))


def write_json(document: Any, target: str) -> None:
    """Write it to a file, or to standard output for ``-``; what is not finite becomes null.

    Raises:
        InputError: the file can't be written.
    """
    text = json.dumps(_finite(document), indent=1, allow_nan=False)
    if target == "-":
        say(text)
        return
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"expected a file that can be written, got {target}: {error}") from error


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
