"""What identifies a model to a checkpoint: the names, shapes and dtypes of its tensors."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sshsdp_fsdp_runtime.runtime import CheckpointEntry

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of a logical tensor; dtypes by name, such as ``float32``."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Signature:
    """The tensors of a model by key; equal on every rank and at every world size."""

    tensors: Mapping[str, TensorSpec]

    @classmethod
    def of(cls, entries: Iterable[CheckpointEntry]) -> "Signature":
        """Signature of a model's entries.

        Raises:
            ValueError: two entries have the same key.
        """
        tensors: dict[str, TensorSpec] = {}
        for entry in entries:
            if entry.key in tensors:
                raise ValueError(f"expected distinct keys, got {entry.key!r} twice; rename one")
            dtype = str(entry.dtype).removeprefix("torch.")
            tensors[entry.key] = TensorSpec(tuple(entry.shape), dtype)
        return cls(tensors)

    def digest(self) -> str:
        """Hash of the content, order included."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()

    def to_json(self) -> list[list[object]]:
        """Rows of key, shape and dtype."""
        return [[key, list(spec.shape), spec.dtype] for key, spec in self.tensors.items()]

    @classmethod
    def from_json(cls, rows: Iterable[tuple[str, list[int], str]]) -> "Signature":
        """Inverse of `to_json`."""
        return cls({key: TensorSpec(tuple(shape), dtype) for key, shape, dtype in rows})

    def difference(self, saved: "Signature") -> str | None:
        """How this model (expected) differs from a saved one (got), or None; the first few keys."""
        found = list(self._differences(saved))
        if not found:
            return None
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        return "; ".join(found[:_SHOWN]) + more

    def _differences(self, saved: "Signature") -> Iterator[str]:
        for key, spec in self.tensors.items():
            other = saved.tensors.get(key)
            if other is None:
                yield f"{key}: expected {spec}, got no such tensor"
            elif other != spec:
                yield f"{key}: expected {spec}, got {other}"
        for key, spec in saved.tensors.items():
            if key not in self.tensors:
                yield f"{key}: expected no such tensor, got {spec}"
