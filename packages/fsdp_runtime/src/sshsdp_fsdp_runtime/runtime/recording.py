"""A recorded construction: operations on tensors that have shapes and storages, but no values."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of a recording: a view of a storage, which is named by its index."""

    storage: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One recorded call.

    Attributes:
        name: for people.
        function: what is called again.
        args: positional arguments with `Ref` in place of fake tensors.
        kwargs: the same by name.
        outputs: `Ref` of every tensor that it returned.
        reads: storages whose values it needs.
        writes: storages that it changes or creates.
        overwrites: those of `writes` of which nothing of the values before is left.
        random: whether it draws random numbers.
        default_dtype: torch's default when it was called.
        rng_state: of the CPU generator, where it was set anew since the operation before.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Ref, ...]
    reads: frozenset[int]
    writes: frozenset[int]
    overwrites: frozenset[int]
    random: bool
    default_dtype: torch.dtype
    rng_state: torch.Tensor | None


@dataclass(slots=True, eq=False)
class Recording:
    """Operations in order, over storages that have sizes but no bytes.

    Attributes:
        operations: what was called.
        rng_state: of the CPU generator when recording began.
        left: the same when it ended; recording draws nothing.
    """

    operations: list[Operation] = field(default_factory=list)
    rng_state: torch.Tensor = field(default_factory=torch.get_rng_state)
    left: torch.Tensor = field(default_factory=torch.get_rng_state)
    _storages: list[torch.UntypedStorage] = field(default_factory=list)
    _index: dict[int, int] = field(default_factory=dict)

    def ref(self, tensor: torch.Tensor) -> Ref:
        """Name a fake tensor."""
        storage = tensor.untyped_storage()
        index = self._index.setdefault(storage._cdata, len(self._storages))
        if index == len(self._storages):
            self._storages.append(storage)  # held: its address must not come back as another's
        return Ref(
            index,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            tensor.dtype,
        )

    def nbytes(self, storage: int) -> int:
        """Size of a storage."""
        return self._storages[storage].nbytes()

    def rng_states(self) -> list[torch.Tensor]:
        """All states of the generator that somebody has set: as it was first, then by seeding."""
        later = [o.rng_state for o in self.operations if o.rng_state is not None]
        return [self.rng_state, *later]

    def covers(self, ref: Ref) -> bool:
        """Whether a tensor is all of its storage, in order."""
        expected, dense = 1, True
        for size, stride in zip(reversed(ref.shape), reversed(ref.stride), strict=True):
            dense &= stride == expected or size == 1
            expected *= size
        return dense and expected * ref.dtype.itemsize == self.nbytes(ref.storage)

    def digest(self) -> bytes:
        """Hash of all operations and constants; not of the random state."""
        content = hashlib.sha256()
        for operation in self.operations:
            described = (operation.args, tuple(operation.kwargs.items()), operation.outputs)
            shown = tree_map(_shown, described)
            seeded = operation.rng_state is not None
            content.update(repr((operation.name, operation.default_dtype, seeded, shown)).encode())
        return content.digest()


def _shown(leaf: Any) -> Any:
    """A leaf of arguments as text that is equal on all ranks where values are."""
    if isinstance(leaf, torch.Tensor):
        data = leaf.contiguous().view(-1)
        raw = data.view(torch.uint8).numpy().tobytes() if data.numel() else b""
        return leaf.dtype, tuple(leaf.shape), hashlib.sha256(raw).hexdigest()
    return leaf
