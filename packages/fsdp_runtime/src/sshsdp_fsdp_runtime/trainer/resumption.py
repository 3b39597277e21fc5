"""What a run that goes on may not change."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from sshsdp_fsdp_runtime.trainer.config import TrainConfig
from sshsdp_fsdp_runtime.trainer.errors import InputError

# A resumed run that changed one of these would not be the same run any more.
FIXED_ON_RESUME = ("data", "batch", "context", "seed", "model", "corpus", "optimizer")


def check_resumable(saved: TrainConfig, wanted: TrainConfig) -> None:
    """Refuse changes that would make the resumed run another run, or that nothing would come of.

    Raises:
        InputError: naming the fields that differ.
    """
    for name in ("name", "runs"):
        if getattr(saved, name) != getattr(wanted, name):
            raise InputError(
                f"expected --resume without --{name}, got {getattr(wanted, name)}: a run goes on in"
                " its folder; drop the option, or move the folder and resume it there"
            )
    rows = [row for name in FIXED_ON_RESUME for row in _differences(saved, wanted, "", name)]
    if rows:
        name, before, after = rows[0]
        more = "".join(f", and {name} ({before}), got {after}" for name, before, after in rows[1:])
        raise InputError(
            f"expected {name} as the run was started ({before}), got {after}{more};"
            f" drop the option{'s' if more else ''}, or start a new run"
        )


def _differences(
    saved: Any, wanted: Any, prefix: str, name: str
) -> Iterator[tuple[str, object, object]]:
    """Dotted name, saved and wanted value of every field in which the two differ."""
    before, after = getattr(saved, name), getattr(wanted, name)
    if is_dataclass(before):
        for inner in fields(before):
            yield from _differences(before, after, f"{prefix}{name}.", inner.name)
    elif before != after:
        yield prefix + name, _shown(before), _shown(after)


def _shown(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return value
