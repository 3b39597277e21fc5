"""Observes from outside how much memory torch operations hold at once."""

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, adds up what operations of this thread allocate and nobody has freed yet.

    Seen are storages that an operation returns and was not given, at the end of each operation;
    what a kernel allocates and frees inside of one is not seen.

    Attributes:
        peak: the most bytes at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._living: list[tuple[StorageWeakRef, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage._cdata not in given:
                given.add(storage._cdata)
                reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._living.append((reference, storage.nbytes()))
        self._living = [
            entry
            for entry in self._living
            if not entry[0].expired()  # type: ignore[no-untyped-call]
        ]
        self.peak = max(self.peak, sum(nbytes for _, nbytes in self._living))
        return result


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [t.untyped_storage() for t in tree_leaves(values) if isinstance(t, torch.Tensor)]
