"""Splits what a caller saves beside the model into JSON values and tensors, and joins them."""

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
