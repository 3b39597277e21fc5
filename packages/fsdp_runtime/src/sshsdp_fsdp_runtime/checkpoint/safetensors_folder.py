"""Models as folders of safetensors files, in the form that Hugging Face's libraries read."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointError
from sshsdp_fsdp_runtime.checkpoint.safetensors_file import SafetensorsFile, StoredTensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_END = 256  # bytes

Row = tuple[str, torch.dtype, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class SafetensorsFolder:
    """The files of a model.

    Attributes:
        path: the folder.
        files: by file name.
    """

    path: Path
    files: Mapping[str, SafetensorsFile]

    @classmethod
    def lay_out(
        cls, path: Path, rows: Sequence[Row], metadata: Mapping[str, str], max_shard_bytes: int
    ) -> "SafetensorsFolder":
        """Fill files in the order of `rows`; a tensor is never split.

        Raises:
            CheckpointError: a dtype that the format has not.
        """
        shards: list[list[Row]] = [[]]
        room = max_shard_bytes
        for row in rows:
            nbytes = StoredTensor(row[1], row[2], 0).nbytes
            if shards[-1] and nbytes > room:
                shards.append([])
                room = max_shard_bytes
            shards[-1].append(row)
            room -= nbytes
        names = [SINGLE]
        if len(shards) > 1:
            count = len(shards)
            names = [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
        return cls(
            path,
            {
                name: SafetensorsFile.lay_out(shard, metadata)
                for name, shard in zip(names, shards, strict=True)
            },
        )

    @classmethod
    def read(cls, path: Path) -> "SafetensorsFolder":
        """What is there: a file, or a folder with one file or with an index.

        Raises:
            CheckpointError: neither, or a file is missing or damaged.
        """
        if path.is_file():
            return cls(path.parent, {path.name: SafetensorsFile.read(path)})
        names = [SINGLE]
        if (path / INDEX).is_file():
            names = _indexed_files(path / INDEX)
        elif not (path / SINGLE).is_file():
            raise CheckpointError(
                f"expected a file, or a folder with {SINGLE} or {INDEX}, got {path}; check the path"
            )
        return cls(path, {name: SafetensorsFile.read(path / name) for name in names})

    def index(self) -> bytes | None:
        """Content of the index; None where one file needs none."""
        if len(self.files) == 1:
            return None
        places = {name: file for file, content in self.files.items() for name in content.tensors}
        total = sum(t.nbytes for file in self.files.values() for t in file.tensors.values())
        content = {
            "metadata": {"total_size": total},
            "weight_map": dict(sorted(places.items())),
        }
        return (json.dumps(content, indent=2) + "\n").encode()

    def fingerprint(self) -> bytes:
        """Headers and the ends of every tensor: other weights have others; not a checksum."""
        digest = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            digest.update(content.header)
            with (self.path / name).open("rb", buffering=0) as stream:
                for _, stored in sorted(content.tensors.items()):
                    for at in (0, max(0, stored.nbytes - _END)):
                        stream.seek(stored.offset + at)
                        digest.update(stream.read(min(_END, stored.nbytes)))
        return digest.digest()

    def tensors(self) -> dict[str, tuple[str, StoredTensor]]:
        """Name -> file and place of every tensor."""
        return {
            name: (file, stored)
            for file, content in self.files.items()
            for name, stored in content.tensors.items()
        }


def _indexed_files(index: Path) -> list[str]:
    """Names of the files that an index sends readers to, all of them beside it."""
    try:
        places = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        for name, file in places.items():
            if not isinstance(file, str) or file != Path(file).name or file in ("", ".."):
                raise ValueError(f"{file!r} for {name!r}, which is no file of this folder")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"expected an index with a weight_map, got {index}: {type(error).__name__}: {error}"
        ) from error
    return sorted(set(places.values()))
