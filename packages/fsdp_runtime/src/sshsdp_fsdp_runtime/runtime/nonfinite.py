"""Values of a sharded model that are inf or NaN: where they are, told alike on every rank."""

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle
from sshsdp_fsdp_runtime.runtime.pieces import own_piece
from sshsdp_fsdp_runtime.runtime.state import RuntimeState
from sshsdp_zerosm import Transport

_ROW = struct.Struct("<qqqq")
_CHUNK = 1 << 20  # elements looked at together: bounds the memory for flags


@dataclass(frozen=True, slots=True)
class Nonfinite:
    """A tensor with elements that are inf or NaN.

    Attributes:
        kind: ``weight`` (main weights), ``buffer``, ``gradient`` or ``state`` (of the optimizer).
        name: of the parameter or buffer.
        field: of the state, like ``exp_avg``; empty elsewhere.
        nan: number of elements that are NaN; each logical element counts once, padding never.
        inf: number of elements that are infinite.
        first: index of the first such element in the logical tensor.
        ranks: that hold such elements, in order.
        shape: of the logical tensor.
    """

    kind: str
    name: str
    field: str
    nan: int
    inf: int
    first: tuple[int, ...]
    ranks: tuple[int, ...]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        counts = [f"{count} {what}" for count, what in ((self.nan, "NaN"), (self.inf, "inf"))]
        found = " and ".join(text for text in counts if text[0] != "0")
        name = f"{self.name}.{self.field}" if self.field else self.name
        ranks = ", ".join(map(str, self.ranks))
        return (
            f"{self.kind} {name}: {found} of {math.prod(self.shape)}, first at "
            f"{list(self.first)}, on rank{'s' * (len(self.ranks) > 1)} {ranks}"
        )


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one rank holds of a tensor."""

    kind: str
    name: str
    field: str
    shape: tuple[int, ...]
    start: int  # of `values`, in the logical tensor
    values: torch.Tensor
    ranks: int  # that hold one copy of the tensor together


def find_nonfinite(model: nn.Module, state: RuntimeState) -> tuple[Nonfinite, ...]:
    """Look through main weights, buffers, gradients and optimizer state. Collective.

    Gradients are looked at where the round has any, and are finalized for it.

    Returns:
        The same on every rank: weights, buffers, gradients, state, each in the model's order.
    """
    if state.passes.count:
        state.gradients.finalize()
    pieces = list(_pieces(model, state))
    own = [(index, row) for index, p in enumerate(pieces) if (row := _look(p)) is not None]
    found: dict[int, list[tuple[int, tuple[int, int, int]]]] = {}
    for rank, rows in enumerate(_tell(state.transport, own)):
        for index, row in rows:
            found.setdefault(index, []).append((rank, row))
    return tuple(_merged(pieces[index], found[index]) for index in sorted(found))


def _pieces(model: nn.Module, state: RuntimeState) -> Iterator[_Piece]:
    """The same pieces in the same order on all ranks."""
    rank = state.transport.rank
    for handle in state.handles:
        fragment, values = own_piece(handle, rank)
        yield _piece("weight", handle, fragment.start, values)
    for name, buffer in model.named_buffers():  # every rank has its own
        yield _Piece("buffer", name, "", tuple(buffer.shape), 0, buffer.detach(), 1)
    for handle in state.handles:
        if state.passes.count and handle.passes and state.gradients.used(handle.spec.name):
            start = state.gradients.fragment(handle).start
            yield _piece("gradient", handle, start, state.gradients.local(handle))
    for field in state.optimizer.fields() if state.optimizer is not None else ():
        handle = state.by_name[field.name]
        ranks = 1 if field.replicated else handle.buffers.atom.degrees.zero1
        yield _Piece(
            "state", field.name, field.field, field.shape, field.fragment.start, field.tensor, ranks
        )


def _piece(kind: str, handle: ParameterHandle, start: int, values: torch.Tensor) -> _Piece:
    spec, ranks = handle.spec, handle.buffers.atom.degrees.zero1
    return _Piece(kind, spec.name, "", spec.shape, start, values.detach(), ranks)


def _look(piece: _Piece) -> tuple[int, int, int] | None:
    """Numbers of NaN and of inf, and the first of them in the logical tensor; None without any."""
    nan, inf, first = 0, 0, -1
    flat = piece.values.reshape(-1)
    for at in range(0, flat.numel(), _CHUNK):
        part = flat[at : at + _CHUNK]
        bad = ~torch.isfinite(part)
        if count := int(bad.sum()):
            nans = int(torch.isnan(part).sum())
            nan, inf = nan + nans, inf + count - nans
            if first < 0:
                first = piece.start + at + int(bad.to(torch.uint8).argmax())
    return None if first < 0 else (nan, inf, first)


def _tell(
    transport: Transport, own: Sequence[tuple[int, tuple[int, int, int]]]
) -> list[list[tuple[int, tuple[int, int, int]]]]:
    """All ranks' rows, by rank; as many exchanges as the longest list needs."""
    limit = transport.max_exchange_bytes // _ROW.size - 1
    all_rows: list[list[tuple[int, tuple[int, int, int]]]] = [[] for _ in range(transport.world)]
    start, longest = 0, 1
    while start < longest:
        sent = [_ROW.pack(len(own), 0, 0, 0)]
        sent += [_ROW.pack(index, *row) for index, row in own[start : start + limit]]
        for rows, message in zip(all_rows, transport.exchange(b"".join(sent)), strict=True):
            (length, *_), *more = _ROW.iter_unpack(message)
            longest = max(longest, length)
            rows += [(index, (nan, inf, first)) for index, nan, inf, first in more]
        start += limit
    return all_rows


def _merged(piece: _Piece, rows: Sequence[tuple[int, tuple[int, int, int]]]) -> Nonfinite:
    """One finding; replicas hold the same elements, so the fullest of them counts."""
    nan: dict[int, int] = {}
    inf: dict[int, int] = {}
    for rank, (nans, infs, _) in rows:
        replica = rank // piece.ranks
        nan[replica] = nan.get(replica, 0) + nans
        inf[replica] = inf.get(replica, 0) + infs
    first = min(row[2] for _, row in rows)
    return Nonfinite(
        kind=piece.kind,
        name=piece.name,
        field=piece.field,
        nan=max(nan.values()),
        inf=max(inf.values()),
        first=_unravel(first, piece.shape),
        ranks=tuple(rank for rank, _ in rows),
        shape=piece.shape,
    )


def _unravel(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    found = []
    for size in reversed(shape):
        index, position = divmod(index, size)
        found.append(position)
    return tuple(reversed(found))
