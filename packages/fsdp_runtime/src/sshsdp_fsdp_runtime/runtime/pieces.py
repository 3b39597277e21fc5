"""Pieces of the truth: which part of a parameter's main weight lies on which rank."""

from collections.abc import Iterator

import torch

from sshsdp_fsdp_runtime.plan import WeightForm
from sshsdp_fsdp_runtime.runtime.buffers import Buffers
from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle
from sshsdp_shardchain import Fragment, Level


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


def full_value(handle: ParameterHandle, buffers: Buffers) -> torch.Tensor:
    """A parameter's whole main weight, read from its owners; peers must have published."""
    if handle.buffers.main_weight is None and handle.buffers.atom.form is not WeightForm.GATHERED:
        return handle.weight.clone()
    atom = handle.buffers.atom
    value = torch.empty(handle.spec.numel, dtype=handle.buffers.truth.dtype)
    for fragment in _fragments(handle):
        source = buffers.truth_of(atom, fragment.rank)
        start = fragment.local_offset
        value[fragment.start : fragment.stop].copy_(source[start : start + fragment.numel])
    return value.view(handle.spec.shape)


def _fragment(handle: ParameterHandle, rank: int) -> Fragment:
    return handle.buffers.atom.layout.fragment(handle.spec.name, Level.ZERO1, rank)


def _fragments(handle: ParameterHandle) -> Iterator[Fragment]:
    for rank in handle.buffers.atom.layout.chain.owners(Level.ZERO1):
        fragment = _fragment(handle, rank)
        if not fragment.empty:
            yield fragment
