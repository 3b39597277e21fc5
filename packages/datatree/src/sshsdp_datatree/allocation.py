"""The one allocation of a tree, its phases and the views cut from it."""

from collections.abc import Callable, Hashable
from typing import Literal

import torch

from .allocator import Allocator
from .errors import DetachedError

Phase = Literal["building", "detached", "attached"]

POISON = 0xFF
"""A byte that makes NaN in every torch float that has NaN with all bits set."""


class Allocation:
    """What all nodes of one tree share: the storage, the callbacks and the cached views.

    Args:
        name: of the root.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.phase: Phase = "building"
        self.views: dict[Hashable, torch.Tensor] = {}
        self.attach_callbacks: list[Callable[[], None]] = []
        self.detach_callbacks: list[Callable[[], None]] = []
        self._nbytes = 0
        self._alignment = 1
        self._storage: torch.Tensor | None = None
        self._allocator: Allocator | None = None

    def freeze(self, nbytes: int, alignment: int) -> None:
        """End the building phase.

        Args:
            nbytes: size that a storage must have at least.
            alignment: in bytes, that the address of a storage must have.
        """
        self._nbytes, self._alignment = nbytes, alignment
        self.phase = "detached"

    def attach(self, source: torch.Tensor | Allocator) -> None:
        """Take storage, then tell everyone who asked; an error of theirs undoes it."""
        if self.phase != "detached":
            remedy = (
                "detach() it first" if self.phase == "attached" else "finalize() the root first"
            )
            raise RuntimeError(
                f"expected tree {self.name!r} to be detached, got one that is {self.phase}; "
                f"{remedy}"
            )
        allocator = None if isinstance(source, torch.Tensor) else source
        storage = (
            source if isinstance(source, torch.Tensor) else source.allocate(self._nbytes, self.name)
        )
        self._storage, self._allocator, self.phase = storage, allocator, "attached"
        try:
            self._check(storage)
            for callback in self.attach_callbacks:
                callback()
        except BaseException:
            self._drop()
            raise

    def detach(self, *, poison: bool = False) -> None:
        """Tell everyone who asked, latest first, then give the storage up, errors or not."""
        self.storage(self.name)
        try:
            for callback in reversed(self.detach_callbacks):
                callback()
        finally:
            if poison:
                self.fill(0, self._nbytes, POISON)
            self._drop()

    def storage(self, path: str) -> torch.Tensor:
        """The attached bytes.

        Args:
            path: of the node that needs them.

        Raises:
            DetachedError: there are none.
        """
        if self._storage is None:
            remedy = (
                "attach()" if self.phase == "detached" else "finalize() on the root, then attach()"
            )
            raise DetachedError(
                f"expected node {path!r} to be attached, got a tree that is {self.phase}; "
                f"call {remedy}"
            )
        return self._storage

    def view(
        self, path: str, offset: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """A tensor on the attached bytes, ``offset`` bytes behind their start."""
        storage = self.storage(path)
        start = storage.storage_offset() + offset
        # Not slices of `storage`: those share one version counter, so autograd would take a write
        # to any node for a change of every other one. And a first touch under inference_mode must
        # not leave an inference tensor behind for training.
        with torch.inference_mode(False):
            view = torch.empty(0, dtype=dtype, device=storage.device)
            return view.set_(
                storage.untyped_storage(), start // dtype.itemsize, shape, _row_major(shape)
            )

    def fill(self, start: int, stop: int, byte: int) -> None:
        """Set the attached bytes ``start <= i < stop`` to one value."""
        self.view(self.name, start, (stop - start,), torch.uint8).fill_(byte)

    def _check(self, storage: torch.Tensor) -> None:
        flat = storage.dtype == torch.uint8 and storage.dim() == 1 and storage.is_contiguous()
        if not flat or storage.numel() < self._nbytes:
            raise ValueError(
                f"expected a contiguous 1-D uint8 tensor of at least {self._nbytes} bytes for tree "
                f"{self.name!r}, got {storage.dtype} of shape {tuple(storage.shape)} and strides "
                f"{storage.stride()}; pass flat memory or another allocator"
            )
        if storage.data_ptr() % self._alignment or storage.storage_offset() % self._alignment:
            raise ValueError(
                f"expected storage aligned to {self._alignment} bytes for tree {self.name!r}, got "
                f"an address of {storage.data_ptr() % self._alignment} and an offset of "
                f"{storage.storage_offset() % self._alignment} past a multiple; "
                "cut it at a multiple, 64 suits every tree"
            )

    def _drop(self) -> None:
        storage, allocator = self._storage, self._allocator
        self.views.clear()
        self._storage = self._allocator = None
        self.phase = "detached"
        if allocator is not None and storage is not None:
            allocator.release(storage)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
