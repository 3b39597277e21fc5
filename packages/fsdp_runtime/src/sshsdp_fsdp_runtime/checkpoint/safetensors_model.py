"""Exports the weights of a model as safetensors files, and loads them.

Nothing is sent and nobody holds more than a block of a tensor: every rank writes the ranges that
it owns to their places in the files, and reads the ranges that it holds.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from sshsdp_fsdp_runtime.checkpoint.agreement import agree
from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError, CheckpointMismatchError
from sshsdp_fsdp_runtime.checkpoint.folder import checked_path, making, sync_folder
from sshsdp_fsdp_runtime.checkpoint.protocol import Checkpointable, check_sharded
from sshsdp_fsdp_runtime.checkpoint.safetensors_file import StoredTensor
from sshsdp_fsdp_runtime.checkpoint.safetensors_folder import INDEX, SafetensorsFolder
from sshsdp_fsdp_runtime.checkpoint.source import agree_on_source
from sshsdp_fsdp_runtime.runtime import CheckpointEntry

_BLOCK = 1 << 22  # elements converted at a time
_SHOWN = 5
_UNFINISHED = ".unfinished"


def export_safetensors(
    path: str | os.PathLike[str],
    model: Checkpointable,
    *,
    max_shard_bytes: int = 5_000_000_000,
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write main weights and buffers under the model's own names. Collective.

    The folder is what ``from_pretrained`` of Hugging Face's transformers reads once a config.json
    is beside it: ``model.safetensors``, or several files and their index. Tied weights are there
    once, under their first name; the metadata of a file says which other names they have, as
    ``safetensors.torch.load_model`` wants it.

    Args:
        path: the folder, the same on all ranks, made if absent; without such files yet.
        model: what to export.
        max_shard_bytes: of tensors in one file; a larger tensor gets a file of its own.
        dtype: of floating-point tensors in the files; default: as the main weights are.
        metadata: text beside ``{"format": "pt"}``.

    Raises:
        TypeError: a model that is not sharded, or a limit that is no int.
        CheckpointError: on every rank the same.
    """
    check_sharded(model)
    if not isinstance(max_shard_bytes, int):
        raise TypeError(
            f"expected max_shard_bytes as a number of bytes, got {max_shard_bytes!r}; give an int"
        )
    if max_shard_bytes < 1:
        raise ValueError(f"expected max_shard_bytes >= 1, got {max_shard_bytes}")
    steps = _Export(path, model, max_shard_bytes, dtype, metadata or {})
    agree(model.transport, steps.plan)
    try:
        for step in (steps.open, steps.write, steps.commit):
            agree(model.transport, step)
    except CheckpointError:
        steps.discard()
        raise


def load_safetensors(path: str | os.PathLike[str] | None, model: Checkpointable) -> None:
    """Load weights and buffers from safetensors files, in place. Collective.

    Values are converted to the dtypes of the main weights. A tied weight may be there under any of
    its names.

    Args:
        path: a file, or a folder with ``model.safetensors`` or an index; the same on all ranks, or
            copies. Ranks compare headers and the first and last bytes of every tensor.
        model: has the names and shapes of the files.

    Raises:
        TypeError: a model that is not sharded.
        CheckpointMismatchError: names or shapes differ; nothing was changed.
        CheckpointError: a file is missing or damaged, or ranks gave different weights; nothing was
            changed. On every rank the same.
    """
    check_sharded(model)
    steps = _Load(model)
    agree_on_source(model.transport, path, steps.open)
    agree(model.transport, steps.plan)
    agree(model.transport, steps.read)
    model.weights_loaded()


class _Export:
    def __init__(
        self,
        path: str | os.PathLike[str],
        model: Checkpointable,
        max_shard_bytes: int,
        dtype: torch.dtype | None,
        metadata: Mapping[str, str],
    ) -> None:
        self._given, self._model, self._limit = path, model, max_shard_bytes
        self._dtype, self._metadata = dtype, metadata

    def plan(self) -> None:
        """Lay the files out, alike on every rank."""
        self._path = checked_path(self._given)
        entries = [e for e in self._model.checkpoint_tensors() if e.key.startswith("model.")]
        self._entries = [entry for entry in entries if entry.tied_to is None]
        tied = {_name(e.key): _name(e.tied_to) for e in entries if e.tied_to is not None}
        self._folder = SafetensorsFolder.lay_out(
            self._path,
            [(_name(e.key), self._stored(e.dtype), tuple(e.shape)) for e in self._entries],
            {"format": "pt", **tied, **self._metadata},
            self._limit,
        )

    def open(self) -> None:
        """Rank 0 makes the files, of their full length, with their headers."""
        if self._model.transport.rank == 0:
            with making(self._path):
                self._make()

    def _make(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        found = sorted(self._path.glob("model*.safetensors*"))
        if found:
            raise CheckpointError(
                f"expected a folder without weights, got {found[0]}; choose another or delete it"
            )
        for name, file in self._folder.files.items():
            with self._draft(name).open("wb") as stream:
                stream.write(file.header)
                stream.truncate(file.nbytes)

    def write(self) -> None:
        """Write this rank's ranges to their places."""
        for name in self._folder.files:
            if not self._draft(name).is_file():
                raise CheckpointError(
                    f"expected a file system that all ranks share, got none of rank 0's "
                    f"{self._draft(name)}; choose a path that every rank reaches"
                )
        places = self._folder.tensors()
        rank = self._model.transport.rank
        for entry in self._entries:
            writes = rank == 0 if 0 in entry.shape else entry.writes
            if writes and entry.tensor.numel():
                file, stored = places[_name(entry.key)]
                _write(self._draft(file), stored, entry)

    def commit(self) -> None:
        """Rank 0 forces the files to the disk and gives them their names, the index last."""
        if self._model.transport.rank:
            return
        for name in self._folder.files:
            with self._draft(name).open("rb+") as stream:
                os.fsync(stream.fileno())
            os.replace(self._draft(name), self._path / name)
        if index := self._folder.index():
            self._draft(INDEX).write_bytes(index)
            os.replace(self._draft(INDEX), self._path / INDEX)
        sync_folder(self._path)

    def discard(self) -> None:
        """Rank 0 removes what was not finished, as far as that works."""
        if self._model.transport.rank == 0:
            for name in (*self._folder.files, INDEX):
                with contextlib.suppress(OSError):
                    self._draft(name).unlink()

    def _draft(self, name: str) -> Path:
        return self._path / f".{name}{_UNFINISHED}"

    def _stored(self, dtype: torch.dtype) -> torch.dtype:
        return self._dtype if self._dtype is not None and dtype.is_floating_point else dtype


class _Load:
    def __init__(self, model: Checkpointable) -> None:
        self._model = model

    def open(self, path: Path) -> bytes:
        """Read the headers; the answer is what ranks compare."""
        self._path = path
        self._folder = SafetensorsFolder.read(path)
        return self._folder.fingerprint()

    def plan(self) -> None:
        """Find every tensor, before the first write into the model."""
        places = self._folder.tensors()
        by_name: dict[str, list[CheckpointEntry]] = {}
        for entry in self._model.checkpoint_tensors():
            if entry.key.startswith("model."):
                by_name.setdefault(_name(entry.tied_to or entry.key), []).append(entry)
        faults = []
        known: set[str] = set()
        self._found: list[tuple[str, StoredTensor, CheckpointEntry]] = []
        for name, entries in by_name.items():
            names = [_name(entry.key) for entry in entries]
            known.update(names)
            there = [places[each] for each in names if each in places]
            if not there:
                faults.append(f"there is no {name!r}")
            elif there[0][1].shape != tuple(entries[0].shape):
                faults.append(
                    f"{name!r} has shape {there[0][1].shape} instead of {tuple(entries[0].shape)}"
                )
            else:
                self._found.append((*there[0], entries[0]))
        faults += [f"{name!r} is not of this model" for name in places if name not in known]
        if faults:
            more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
            raise CheckpointMismatchError(
                f"expected the weights of this model, got {self._path}, where "
                f"{'; '.join(faults[:_SHOWN])}{more}"
            )

    def read(self) -> None:
        """Read this rank's ranges from their places."""
        for file, stored, entry in self._found:
            if entry.tensor.numel():
                _read(self._folder.path / file, stored, entry)


def _name(key: str) -> str:
    return key.removeprefix("model.")


def _blocks(entry: CheckpointEntry, stored: StoredTensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Offset in the file and local elements, a block at a time."""
    for first in range(0, entry.tensor.numel(), _BLOCK):
        block = entry.tensor[first : first + _BLOCK]
        yield stored.offset + (entry.start + first) * stored.dtype.itemsize, block


def _write(file: Path, stored: StoredTensor, entry: CheckpointEntry) -> None:
    with file.open("rb+", buffering=0) as stream:
        for offset, block in _blocks(entry, stored):
            stream.seek(offset)
            data = block.to(stored.dtype).contiguous().view(torch.uint8).numpy().data
            while data:
                data = data[stream.write(data) :]
        os.fsync(stream.fileno())


def _read(file: Path, stored: StoredTensor, entry: CheckpointEntry) -> None:
    with file.open("rb") as stream, torch.no_grad():
        for offset, block in _blocks(entry, stored):
            stream.seek(offset)
            data = bytearray(stream.read(block.numel() * stored.dtype.itemsize))
            block.copy_(torch.frombuffer(data, dtype=stored.dtype))
