"""Logical tensors of a model as one rank holds them: names, shapes and flat ranges."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sshsdp_fsdp_runtime.plan import Plan
from sshsdp_fsdp_runtime.runtime.pieces import own_piece
from sshsdp_fsdp_runtime.runtime.state import RuntimeState
from sshsdp_shardchain import Degrees


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointEntry:
    """One logical tensor, seen from one rank.

    Attributes:
        key: ``model.<parameter or buffer name>`` or ``optimizer.state.<parameter name>.<field>``.
        shape: logical shape.
        dtype: dtype of the saved elements.
        start: first element that this rank holds, relative to the logical tensor.
        stop: one after the last; equal to `start` where the rank holds none.
        tensor: 1-D contiguous tensor of those ``stop - start`` elements; loading writes into it.
        writes: this rank's replica saves them. Each element is saved by exactly one rank.
        tied_to: the key under which the same memory came before; None for the first name.
    """

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    stop: int
    tensor: torch.Tensor
    writes: bool
    tied_to: str | None = None


def model_entries(model: nn.Module, state: RuntimeState) -> Iterator[CheckpointEntry]:
    """Main weights (runtime weights where frozen) and buffers, under the model's own names.

    Tied parameters appear once per name, so that a plain model finds all of its keys; all but
    the first name are written by nobody twice: each name is a tensor of its own in the checkpoint.
    """
    rank = state.transport.rank
    for handle in state.handles:
        fragment, piece = own_piece(handle, rank)
        first_replica = rank < handle.buffers.atom.degrees.zero1
        empty = handle.spec.numel == 0
        for alias in handle.spec.aliases:
            yield CheckpointEntry(
                key=f"model.{alias}",
                shape=handle.spec.shape,
                dtype=piece.dtype,
                start=fragment.start,
                stop=fragment.stop,
                tensor=piece,
                writes=rank == 0 if empty else first_replica,
                tied_to=None if alias == handle.spec.name else f"model.{handle.spec.name}",
            )
    for name in persistent_buffers(model):
        buffer = model.get_buffer(name)
        yield CheckpointEntry(
            key=f"model.{name}",
            shape=tuple(buffer.shape),
            dtype=buffer.dtype,
            start=0,
            stop=buffer.numel(),
            tensor=buffer.detach().view(-1),
            writes=rank == 0,
        )


def optimizer_entries(state: RuntimeState) -> Iterator[CheckpointEntry]:
    """Optimizer state, under torch's names of its fields."""
    if state.optimizer is None:
        return
    rank = state.transport.rank
    for field in state.optimizer.fields():
        handle = state.by_name[field.name]
        once = field.replicated or handle.spec.numel == 0
        yield CheckpointEntry(
            key=f"optimizer.state.{field.name}.{field.field}",
            shape=field.shape,
            dtype=field.tensor.dtype,
            start=field.fragment.start,
            stop=field.fragment.stop,
            tensor=field.tensor,
            writes=rank == 0 if once else rank < handle.buffers.atom.degrees.zero1,
        )


def layout_facts(plan: Plan) -> dict[str, Any]:
    """How many ranks share a model, and into how many pieces they cut it; JSON values."""
    tensors: Counter[Degrees] = Counter()
    elements: Counter[Degrees] = Counter()
    for atom in plan.atoms:
        tensors[atom.degrees] += len(atom.parameters)
        elements[atom.degrees] += sum(parameter.numel for parameter in atom.parameters)
    return {
        "nodes": plan.topology.nodes,
        "ranks_per_node": plan.topology.ranks_per_node,
        "degrees": [
            {
                "degrees": [degrees.zero3, degrees.zero2, degrees.zero1],
                "tensors": tensors[degrees],
                "elements": elements[degrees],
            }
            for degrees in tensors
        ],
    }


def persistent_buffers(model: nn.Module) -> list[str]:
    """Names of the buffers that belong into a state dict, in registration order."""
    names = []
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                names.append(f"{prefix}.{name}" if prefix else name)
    return names
