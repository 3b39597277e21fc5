"""Reading through torch.distributed.checkpoint, each rank for itself."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

_AT_ONCE = 64 << 20  # bytes


def read_into(state: dict[str, Any], path: Path) -> None:
    """Fill the tensors of `state` in place and replace its other values. No communication."""
    with warnings.catch_warnings():
        # torch warns when it loads without a process group, which is meant.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(state, storage_reader=FileSystemReader(path), no_dist=True)


def saved_items(path: Path) -> dict[str, Any]:
    """Key -> torch's description of every item of a folder of torch.distributed.checkpoint."""
    return dict(FileSystemReader(path).read_metadata().state_dict_metadata)


def whole_tensors(path: Path, keys: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """The saved tensors of these keys, in their order; a bounded number of bytes at a time."""
    items = saved_items(path)
    batch: dict[str, Any] = {}
    nbytes = 0
    for key in keys:
        item = items[key]
        assert isinstance(item, TensorStorageMetadata)
        batch[key] = torch.empty(item.size, dtype=item.properties.dtype)
        nbytes += batch[key].nbytes
        if nbytes >= _AT_ONCE:
            read_into(batch, path)
            yield from batch.items()
            batch, nbytes = {}, 0
    if batch:
        read_into(batch, path)
        yield from batch.items()
