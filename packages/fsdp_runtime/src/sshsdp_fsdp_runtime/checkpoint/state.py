"""The state dict that a model's entries form for torch.distributed.checkpoint."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

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


def snapshot(state: Mapping[str, Any]) -> dict[str, Any]:
    """The same state with memory of its own; what this rank does not save is not copied.

    Fragments that show the same memory, as those of tied parameters, share their copy.
    """
    return _copy(state, {})


def _copy(state: Mapping[str, Any], seen: dict[tuple[int, int], torch.Tensor]) -> dict[str, Any]:
    copy: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Mapping):
            copy[key] = _copy(value, seen)
        elif isinstance(value, FragmentTensor) and value.writes:
            local = value.local
            place = local.data_ptr(), local.nbytes
            if place not in seen:
                seen[place] = local.clone()
            copy[key] = FragmentTensor(seen[place].view(local.dtype), value.shape, value.start)
        elif isinstance(value, torch.Tensor) and not isinstance(value, FragmentTensor):
            copy[key] = value.clone()
        else:
            copy[key] = value
    return copy


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
