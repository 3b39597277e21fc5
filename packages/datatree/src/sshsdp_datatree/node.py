"""Nodes of a data tree."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch

from .allocation import Allocation, Phase
from .allocator import Allocator
from .finalization import check_tree
from .poison import poison_spans


class DataNode:
    """A tensor at a byte offset within its parent; only the root has an allocation.

    Build the tree from the root down, ``finalize()`` it once, then attach and detach storage as
    often as needed. All nodes stay as they are without storage. Children may differ from their
    parent in dtype and shape, overlap each other and leave gaps. The attributes are for reading.

    Source: SS-HSDP section 3.2 and appendix A.

    Args:
        name: without ``/``, unique among the children of the parent.
        shape: of the tensor, sizes of 0 or more.
        dtype: of the tensor.
        parent: the node whose bytes this one shares; None makes a root.
        byte_offset: of the first byte, relative to the parent.

    Raises:
        ValueError: a name, shape or offset that no tree can have.
        RuntimeError: the tree of the parent is finalized.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        parent: "DataNode | None" = None,
        byte_offset: int = 0,
    ) -> None:
        _check(name, shape, parent, byte_offset)
        self.name: Final = name
        self.shape: Final = tuple(shape)
        self.dtype: Final = dtype
        self.parent: Final = parent
        self.byte_offset: Final = byte_offset
        self.nbytes: Final = math.prod(self.shape) * dtype.itemsize
        self.path: Final[str] = name if parent is None else f"{parent.path}/{name}"
        self.root: Final[DataNode] = self if parent is None else parent.root
        self._children: list[DataNode] = []
        self._root_offset: int = (
            byte_offset if parent is None else parent._root_offset + byte_offset
        )
        self._allocation: Allocation = Allocation(name) if parent is None else parent._allocation
        if parent is not None:
            parent._children.append(self)

    @property
    def children(self) -> "tuple[DataNode, ...]":
        """The nodes that view bytes of this one, in the order they were made."""
        return tuple(self._children)

    @property
    def phase(self) -> Phase:
        """Of the whole tree: "building", "detached" or "attached"."""
        return self._allocation.phase

    @property
    def root_offset(self) -> int:
        """Of the first byte, relative to the root.

        Raises:
            RuntimeError: the tree is still building, so the offset was not checked.
        """
        if self._allocation.phase == "building":
            raise RuntimeError(
                f"expected a finalized tree to give the root offset of {self.path!r}, "
                "got one that is building; call finalize() on the root"
            )
        return self._root_offset

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor on the attached storage; the same object until the tree is detached.

        It has its own version counter: for autograd, a write through another node that shares
        bytes is no change of this tensor.

        Raises:
            DetachedError: there is no storage.
        """
        try:
            return self._allocation.views[self]
        except KeyError:
            pass
        view = self._allocation.view(self.path, self._root_offset, self.shape, self.dtype)
        self._allocation.views[self] = view
        return view

    def walk(self) -> "Iterator[DataNode]":
        """This node and all below it, parents first, siblings in order."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(reversed(node._children))

    def finalize(self) -> None:
        """Check the tree and freeze it; called once, on the root.

        Raises:
            ValueError: a child leaves its parent, is not aligned to its dtype, or shares its name
                with a sibling.
            RuntimeError: this is not a root, or it is finalized already.
        """
        if self.parent is not None:
            raise RuntimeError(
                f"expected the root, got {self.path!r}; call finalize() on {self.root.name!r}"
            )
        if self.phase != "building":
            raise RuntimeError(
                f"expected tree {self.name!r} to be building, got one that is {self.phase}; "
                "call finalize() once"
            )
        check_tree(self)
        alignment = math.lcm(*(node.dtype.itemsize for node in self.walk()))
        self._allocation.freeze(self.nbytes, alignment)

    def attach(self, storage: torch.Tensor | Allocator) -> None:
        """Give the tree storage; any node forwards to its root.

        Args:
            storage: bytes (1-D, contiguous, ``uint8``, at least as long as the root), which stay
                the caller's; or an allocator, which is asked for them and gets them back.

        Raises:
            ValueError: the bytes do not fit.
            RuntimeError: the tree is building or attached.
        """
        self._allocation.attach(storage)

    def detach(self) -> None:
        """Take the storage away; any node forwards to its root, metadata stays.

        The nodes drop their tensors. One that someone kept still refers to the old bytes.

        Raises:
            DetachedError: there is no storage.
        """
        self._allocation.detach()

    def on_attach(self, callback: Callable[[], None]) -> None:
        """Have a function called whenever the root was attached, in order of registration.

        If it raises, the tree is detached again and the error goes to whoever attached.
        """
        self._allocation.attach_callbacks.append(callback)

    def on_detach(self, callback: Callable[[], None]) -> None:
        """Have a function called before the root is detached, in reverse order of registration.

        If it raises, the tree is detached nevertheless.
        """
        self._allocation.detach_callbacks.append(callback)

    @contextmanager
    def allocated(self, allocator: Allocator, *, poison: bool = False) -> Iterator[None]:
        """Storage for the length of a ``with`` block.

        Args:
            allocator: gives the bytes and gets them back.
            poison: fill all bytes with 0xFF before they go back, so that a tensor someone kept
                reads NaN (or -1), not yesterday's values.
        """
        self._allocation.attach(allocator)
        try:
            yield
        finally:
            self._allocation.detach(poison=poison)

    def poison(self) -> None:
        """Make bytes that nobody should read, from this node down, stand out.

        Floating and complex leaves become NaN, bytes of other nodes that no child covers become
        0xFF. Other leaves keep their values, except where a floating one shares their bytes.

        Raises:
            DetachedError: there is no storage.
        """
        self._allocation.storage(self.path)
        for start, stop, byte in poison_spans(self):
            self._allocation.fill(start, stop, byte)


def _check(name: str, shape: Sequence[int], parent: DataNode | None, byte_offset: int) -> None:
    if not name or "/" in name:
        raise ValueError(f"expected a name without '/', got {name!r}; paths are made of names")
    if any(size < 0 for size in shape):
        raise ValueError(f"expected sizes of 0 or more, got {tuple(shape)} for node {name!r}")
    if parent is None and byte_offset:
        raise ValueError(
            f"expected root {name!r} at byte 0, got byte_offset={byte_offset}; "
            "offsets are relative to a parent, cut the storage instead"
        )
    if parent is not None and parent.phase != "building":
        raise RuntimeError(
            f"expected tree {parent.root.name!r} to be building, got one that is {parent.phase}; "
            f"create {name!r} before finalize()"
        )
