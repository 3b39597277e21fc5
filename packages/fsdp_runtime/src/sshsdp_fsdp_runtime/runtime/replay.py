"""Runs a recorded construction on real memory, one tensor after another."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_leaves, tree_map

from sshsdp_fsdp_runtime.runtime.recording import Operation, Recording, Ref

Sink: TypeAlias = Callable[[torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class _Step:
    """An operation that has to run, or None; then values that are final, and memory to free."""

    operation: Operation | None
    finished: tuple[int, ...]
    frees: frozenset[int]


class Replay:
    """Real memory of a recording while it is replayed.

    What is overwritten later is not computed; of it, only random numbers are drawn. A value lives
    from the first operation that it depends on until it was handed over and nobody reads it.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._memory: dict[int, torch.UntypedStorage] = {}

    def run(
        self,
        sinks: Iterable[tuple[Ref, Sink]],
        kept: Collection[Ref],
        rng_states: Sequence[torch.Tensor],
    ) -> dict[Ref, torch.Tensor]:
        """Replay everything; the CPU generator ends as after the construction itself.

        Args:
            sinks: what gets which value as soon as it is final; it must not keep it.
            kept: values to return.
            rng_states: in place of `Recording.rng_states`, or those.
        """
        targets: dict[int, list[tuple[Ref, Sink]]] = {}
        for ref, sink in sinks:
            targets.setdefault(ref.storage, []).append((ref, sink))
        states = iter(rng_states)
        torch.set_rng_state(next(states))
        operations = list(_early(self._recording.operations))
        for step in self._steps(operations, targets, {ref.storage for ref in kept}):
            if step.operation is not None:
                if step.operation.rng_state is not None:
                    torch.set_rng_state(next(states))
                self._execute(step.operation)
            for storage in step.finished:
                for ref, sink in targets[storage]:
                    sink(self._tensor(ref))
            for storage in step.frees:
                self._memory.pop(storage, None)
        return {ref: self._tensor(ref) for ref in kept}

    def value(self, ref: Ref) -> torch.Tensor | None:
        """One value as it is at the end of the recording; None if it depends on random numbers."""
        needed, operations = {ref.storage}, []
        for operation in reversed(self._recording.operations):
            if not needed.isdisjoint(operation.writes):
                if operation.random:
                    return None
                operations.append(operation)
                needed -= operation.overwrites
                needed |= operation.reads
        for operation in reversed(operations):
            self._execute(operation)
        return self._tensor(ref)

    def _steps(
        self, operations: Sequence[Operation], finished: Collection[int], kept: set[int]
    ) -> Iterable[_Step]:
        last: dict[int, int] = {}
        for index, operation in enumerate(operations):
            last.update(dict.fromkeys(operation.writes, index))
        done: dict[int, list[int]] = {}
        for storage in finished:
            done.setdefault(last.get(storage, len(operations) - 1), []).append(storage)
        needed = set(kept)
        steps: list[_Step] = []
        for index in range(len(operations) - 1, -1, -1):
            operation, ready = operations[index], done.get(index, [])
            after = frozenset(needed)
            needed.update(ready)
            runs = operation.random or not needed.isdisjoint(operation.writes)
            touched = frozenset(ready)
            if runs:
                touched |= operation.reads | operation.writes
                needed -= operation.overwrites
                needed |= operation.reads
            if runs or ready:
                steps.append(_Step(operation if runs else None, tuple(ready), touched - after))
        return reversed(steps)

    def _execute(self, operation: Operation) -> None:
        default = torch.get_default_dtype()
        torch.set_default_dtype(operation.default_dtype)
        try:
            with torch.no_grad():
                args, kwargs = tree_map(self._real, (operation.args, dict(operation.kwargs)))
                result = operation.function(*args, **kwargs)
        finally:
            torch.set_default_dtype(default)
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        for ref, tensor in zip(operation.outputs, tensors, strict=bool(operation.outputs)):
            if ref.storage not in self._memory:
                self._adopt(ref, tensor)

    def _adopt(self, ref: Ref, tensor: torch.Tensor) -> None:
        """Take the memory of a new value, which lies as it was recorded."""
        storage = tensor.untyped_storage()
        alike = (tuple(tensor.stride()), int(tensor.storage_offset())) == (ref.stride, ref.offset)
        if alike and storage.nbytes() == self._recording.nbytes(ref.storage):
            self._memory[ref.storage] = storage
        else:
            self._tensor(ref).copy_(tensor)

    def _real(self, leaf: Any) -> Any:
        if isinstance(leaf, Ref):
            return self._tensor(leaf)
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf

    def _tensor(self, ref: Ref) -> torch.Tensor:
        storage = self._memory.get(ref.storage)
        if storage is None:
            nbytes = self._recording.nbytes(ref.storage)
            storage = torch.empty(nbytes, dtype=torch.uint8).untyped_storage()
            self._memory[ref.storage] = storage
        empty = torch.empty(0, dtype=ref.dtype)
        return empty.set_(storage, ref.offset, ref.shape, ref.stride)


def _early(operations: Sequence[Operation]) -> Iterator[Operation]:
    """The operations in another order: what is computed from final values comes right after them.

    So a cast of the whole model after its construction does not need all of it at once.
    """
    written: dict[int, int] = {}  # the operation that wrote a storage last, as a position
    positions: list[tuple[int, int]] = []
    for index, operation in enumerate(operations):
        position = index
        if not operation.random and operation.writes == operation.overwrites - operation.reads:
            fresh = operation.writes.isdisjoint(written)
            if fresh and operation.reads:
                position = max(written.get(storage, 0) for storage in operation.reads)
        written.update(dict.fromkeys(operation.writes, position))
        positions.append((position, index))
    return (operations[index] for _, index in sorted(positions))
