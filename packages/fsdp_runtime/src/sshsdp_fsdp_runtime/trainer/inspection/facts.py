"""What `sshsdp inspect` says of one checkpoint, as data."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sshsdp_fsdp_runtime.trainer.inspection.health import Health
from sshsdp_fsdp_runtime.trainer.inspection.saved_tensors import Saved, SavedTensor
from sshsdp_fsdp_runtime.trainer.planning.folding import fold_names

_STEP = "step"  # kept per parameter, and hardly ever of interest for one of them


@dataclass(frozen=True, slots=True)
class TensorRow:
    """Tensors of one kind, shape and dtype whose names differ in numbers only.

    Attributes:
        kind: ``weights``, a field of optimizer state, or ``values``.
        names: a pattern, as shape files write them.
        tensors: how many.
        shape: of each.
        dtype: of each.
        nbytes: of all of them.
        health: of all of their values; None: not looked at.
        sick: the first name with values that are not finite.
    """

    kind: str
    names: str
    tensors: int
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    health: Health | None = None
    sick: str | None = None


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """A checkpoint.

    Attributes:
        path: its folder.
        format: version, None where another program saved it.
        step: training step, None where none was said.
        saved_at: in UTC, None where it is not known.
        world: ranks that saved it, None where it is not known.
        layout: nodes, ranks per node and degrees, as far as known.
        values: the caller's JSON values.
        rows: its tensors.
        nbytes: of all tensors.
        checked: how far files were compared: ``lengths`` or ``lengths and checksums``.
        damage: what is wrong with them; None: nothing.
    """

    path: str
    format: int | None
    step: int | None
    saved_at: str | None
    world: int | None
    layout: dict[str, Any]
    values: Any
    rows: tuple[TensorRow, ...]
    nbytes: int
    checked: str
    damage: str | None

    @property
    def sick(self) -> list[str]:
        """First names of tensors with values that are not finite."""
        return [row.sick for row in self.rows if row.sick is not None]


def checkpoint_facts(saved: Saved, *, contents: bool) -> CheckpointFacts:
    """Look at a checkpoint.

    Args:
        saved: the checkpoint.
        contents: read everything: compare checksums and look at the values. Values of damaged
            files are not looked at.

    Raises:
        InputError: values can't be read.
    """
    damage = saved.damage(contents=contents)
    tensors = list(saved.tensors.values())
    health: dict[str, Health] = {}
    if contents and damage is None:
        keys = [tensor.key for tensor in tensors if tensor.kind != "values"]
        health = {key: Health.of(value) for key, value in saved.values(keys)}
    manifest = saved.manifest
    known = manifest is not None and manifest.step >= 0
    return CheckpointFacts(
        path=str(saved.path),
        format=manifest.version if manifest else None,
        step=manifest.step if manifest and known else None,
        saved_at=_time(manifest.saved_at) if manifest else None,
        world=manifest.world if manifest else None,
        layout=dict(manifest.layout) if manifest else {},
        values=manifest.extra.values if manifest else None,
        rows=tuple(_rows(tensors, health)),
        nbytes=sum(tensor.nbytes for tensor in tensors),
        checked="lengths and checksums" if contents else "lengths",
        damage=damage,
    )


def _rows(tensors: Sequence[SavedTensor], health: dict[str, Health]) -> list[TensorRow]:
    kinds = list(dict.fromkeys(tensor.kind for tensor in tensors))
    alike: dict[tuple[str, tuple[int, ...], str], dict[str, SavedTensor]] = {}
    for tensor in sorted(tensors, key=lambda tensor: kinds.index(tensor.kind)):
        alike.setdefault((tensor.kind, tensor.shape, tensor.dtype), {})[tensor.name] = tensor
    rows = []
    for (kind, shape, dtype), by_name in alike.items():
        for names in [list(by_name)] if kind == _STEP else _patterns(by_name):
            members = [by_name[name] for name in names]
            seen = [health[member.key] for member in members if member.key in health]
            sick = next(
                (m.name for m in members if m.key in health and health[m.key].not_finite), None
            )
            rows.append(
                TensorRow(
                    kind=kind,
                    names="**" if kind == _STEP else _folded(names),
                    tensors=len(members),
                    shape=shape,
                    dtype=dtype,
                    nbytes=sum(member.nbytes for member in members),
                    health=sum(seen, Health()) if seen else None,
                    sick=sick,
                )
            )
    return rows


def _folded(names: Sequence[str]) -> str:
    return " ".join(fold.pattern for fold in fold_names(names))


def _patterns(names: dict[str, SavedTensor]) -> list[list[str]]:
    """Names that differ in numbers only, together."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        template = tuple("#" if part.isdecimal() else part for part in name.split("."))
        groups.setdefault(template, []).append(name)
    return list(groups.values())


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
