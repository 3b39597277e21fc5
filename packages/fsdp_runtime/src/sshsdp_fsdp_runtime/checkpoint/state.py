"""The state dict that a model's entries form for torch.distributed.checkpoint."""

from collections.abc import Iterable
from typing import Any

from sshsdp_fsdp_runtime.runtime import CheckpointEntry, FragmentTensor


def state_dict(entries: Iterable[CheckpointEntry], rank: int) -> dict[str, Any]:
    """Nest fragments the way plain PyTorch programs nest state: names may hold dots.

    Args:
        entries: of `Checkpointable.checkpoint_tensors`.
        rank: the rank they are of; rank 0 saves the tensors without elements.

    Returns:
        ``{"model": {name: fragment}, "optimizer": {"state": {name: {field: fragment}}}}``; joined
        by dots, as torch flattens it, its keys are those of the entries.

    Raises:
        ValueError: a key has neither of the two forms, or a tensor is not what its entry says.
    """
    nested: dict[str, Any] = {}
    for entry in entries:
        *path, last = _path(entry.key)
        target = nested
        for step in path:
            target = target.setdefault(step, {})
        target[last] = _fragment(entry, rank)
    return nested


def _fragment(entry: CheckpointEntry, rank: int) -> FragmentTensor:
    if entry.tensor.numel() != entry.stop - entry.start or entry.tensor.dtype != entry.dtype:
        raise ValueError(
            f"expected {entry.stop - entry.start} elements of {entry.dtype} for {entry.key!r}, got "
            f"{entry.tensor.numel()} of {entry.tensor.dtype}; give the tensor of [start, stop)"
        )
    writes = rank == 0 if 0 in entry.shape else entry.writes
    return FragmentTensor(entry.tensor, entry.shape, entry.start, writes=writes)


def _path(key: str) -> tuple[str, ...]:
    kind, _, name = key.partition(".")
    if kind == "model" and name:
        return kind, name
    if key.startswith("optimizer.state.") and key.count(".") > 2:
        name, _, field = key.removeprefix("optimizer.state.").rpartition(".")
        return "optimizer", "state", name, field
    raise ValueError(
        f"expected a key 'model.<name>' or 'optimizer.state.<name>.<field>', got {key!r}; rename it"
    )
