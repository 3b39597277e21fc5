"""Pieces of the truth: which part of a parameter's main weight lies on which rank."""

from collections.abc import Sequence

import torch

from sshsdp_fsdp_runtime.plan import AtomPlan, WeightForm
from sshsdp_fsdp_runtime.runtime.buffers import Buffers
from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle
from sshsdp_shardchain import Fragment, Level
from sshsdp_zerosm import Transport


def own_piece(handle: ParameterHandle, rank: int) -> tuple[Fragment, torch.Tensor]:
    """This rank's fragment at ZeRO-1 and its 1-D elements: main weights, else w."""
    fragment = _fragment(handle, rank)
    start = fragment.local_offset
    return fragment, handle.buffers.truth[start : start + fragment.numel]


def store(handle: ParameterHandle, values: torch.Tensor, rank: int) -> None:
    """Write this rank's part of a parameter's full 1-D `values`."""
    fragment, piece = own_piece(handle, rank)
    if not fragment.empty:
        piece.copy_(values[fragment.start : fragment.stop])


def full_value(
    handle: ParameterHandle, buffers: Buffers, transport: Transport, *, wanted: bool = True
) -> torch.Tensor | None:
    """A parameter's whole main weight, from its owners; they have published. Collective.

    Returns:
        A tensor of its own, of the parameter's shape; None where it is not `wanted`, which takes
        no memory.
    """
    atom = handle.buffers.atom
    if handle.buffers.main_weight is None and atom.form is not WeightForm.GATHERED:
        return handle.weight.clone() if wanted else None
    fragments = [_fragment(handle, rank) for rank in atom.layout.chain.owners(Level.ZERO1)]
    value = torch.empty(handle.spec.numel, dtype=handle.buffers.truth.dtype) if wanted else None
    if transport.topology.nodes > 1:
        _exchange_into(value, handle, fragments, transport)
    elif value is not None:
        for fragment in fragments:
            value[fragment.start : fragment.stop].copy_(_read(buffers, atom, fragment))
    return None if value is None else value.view(handle.spec.shape)


def _read(buffers: Buffers, atom: AtomPlan, fragment: Fragment) -> torch.Tensor:
    start = fragment.local_offset
    return buffers.truth_of(atom, fragment.rank)[start : start + fragment.numel]


def _exchange_into(
    value: torch.Tensor | None,
    handle: ParameterHandle,
    fragments: Sequence[Fragment],
    transport: Transport,
) -> None:
    """The owners' pieces by message, where not all owners can be read."""
    own, piece = own_piece(handle, transport.rank)
    limit = transport.max_exchange_bytes // piece.dtype.itemsize  # elements
    for start in range(0, max(fragment.numel for fragment in fragments), limit):
        sends = own in fragments
        part = piece[start : start + limit].view(torch.uint8).numpy().tobytes() if sends else b""
        messages = transport.exchange(part)
        if value is None:
            continue
        for fragment in fragments:
            if message := messages[fragment.rank]:
                received = torch.frombuffer(bytearray(message), dtype=piece.dtype)
                first = fragment.start + start
                value[first : first + received.numel()].copy_(received)


def _fragment(handle: ParameterHandle, rank: int) -> Fragment:
    return handle.buffers.atom.layout.fragment(handle.spec.name, Level.ZERO1, rank)
