"""Splits what a caller saves beside the model into JSON values and tensors, and joins them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Extra:
    """A value with its tensors taken out.

    Attributes:
        values: the JSON value; null where a tensor was.
        tensors: the tensors by where they were (keys of mappings, positions in lists).
    """

    values: Any
    tensors: Mapping[Path, torch.Tensor]

    @classmethod
    def split(cls, value: object, name: str = "extra") -> "Extra":
        """Take the tensors out of a nest of mappings, lists, tuples (saved as lists) and scalars.

        Raises:
            TypeError: for anything else; the text names where it is.
        """
        tensors: dict[Path, torch.Tensor] = {}
        return cls(_take(value, (), name, tensors), tensors)

    def digests(self) -> dict[str, str]:
        """SHA-256 of the contents by key, where the value is a mapping."""
        whole = {key: hashlib.sha256(_text(value)) for key, value in self.values.items()}
        for path, tensor in self.tensors.items():
            content = whole[str(path[0])]
            content.update(_text([path, str(tensor.dtype), tensor.shape]))
            # Of a tensor of another kind, what it holds is its own affair.
            if type(tensor) is torch.Tensor and tensor.layout is torch.strided:
                flat = tensor.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
                content.update(flat.view(torch.uint8).numpy().data)
        return {key: content.hexdigest() for key, content in whole.items()}

    def join(self) -> Any:
        """The value with its tensors back in place; changes `values` itself."""
        if () in self.tensors:
            return self.tensors[()]
        for path, tensor in self.tensors.items():
            target = self.values
            for step in path[:-1]:
                target = target[step]
            target[path[-1]] = tensor
        return self.values


def _text(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def pointer(path: Path) -> str:
    """Unique text of a path, as in RFC 6901: ``/rng/0``."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def _take(value: object, path: Path, name: str, tensors: dict[Path, torch.Tensor]) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach()
        return None
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _take(item, (*path, key), name, tensors) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_take(item, (*path, i), name, tensors) for i, item in enumerate(value)]
    raise TypeError(
        f"expected tensors, JSON values and mappings with text keys, got {type(value).__name__} at "
        f"{name}{pointer(path)}; convert it before saving"
    )
