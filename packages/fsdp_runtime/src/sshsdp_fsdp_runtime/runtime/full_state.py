"""Whole tensors out of a sharded model and into it, one at a time."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from sshsdp_fsdp_runtime.runtime.entry import persistent_buffers
from sshsdp_fsdp_runtime.runtime.fragment_tensor import FragmentTensor
from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle
from sshsdp_fsdp_runtime.runtime.pieces import full_value, own_piece
from sshsdp_fsdp_runtime.runtime.state import RuntimeState
from sshsdp_zerosm import Transport

_SHOWN = 5
_GIVEN = b"+"  # a rank's word that it has values


def full_values(
    model: nn.Module, state: RuntimeState, *, wanted: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter and persistent buffer by name, in main precision. Collective.

    A rank that does not want them gets nothing, and still has to run the iterator to its end.
    """
    state.transport.barrier()
    for handle in state.handles:
        value = full_value(handle, state.buffers, state.transport, wanted=wanted)
        if value is not None:
            for alias in handle.spec.aliases:
                yield alias, value
        del value
    for name in persistent_buffers(model) if wanted else ():
        yield name, model.get_buffer(name).detach().clone()


def expected_shapes(model: nn.Module, handles: Sequence[ParameterHandle]) -> dict[str, torch.Size]:
    """Name -> shape of everything that a full state dict holds."""
    shapes = {alias: torch.Size(h.spec.shape) for h in handles for alias in h.spec.aliases}
    return shapes | {name: model.get_buffer(name).shape for name in persistent_buffers(model)}


def check_full(shapes: Mapping[str, torch.Size], values: Mapping[str, torch.Tensor]) -> None:
    """Compare a full state dict with what the model expects.

    Raises:
        ValueError: naming the first few differences.
    """
    if not isinstance(values, Mapping):
        raise ValueError(
            f"expected a mapping of names to tensors, got {type(values).__name__}; give what "
            "full_state_dict() or a plain model's state_dict() returned"
        )
    faults = [f"missing {name!r}" for name in shapes if name not in values]
    faults += [f"unexpected {name!r}" for name in values if name not in shapes]
    for name, shape in shapes.items():
        if name in values:
            value = values[name]
            if not isinstance(value, torch.Tensor):
                faults.append(f"{type(value).__name__} for {name!r}")
            elif type(value) is FragmentTensor:
                faults.append(f"a sharded value for {name!r}")
            elif value.shape != shape:
                faults.append(f"{name!r} of shape {tuple(value.shape)} instead of {tuple(shape)}")
    if faults:
        raise ValueError(
            f"expected a full state dict of this model, got {'; '.join(faults[:_SHOWN])}"
            + (f" and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else "")
            + "; use load_checkpoint() for sharded ones"
        )


def agree_on_full(
    model: nn.Module, state: RuntimeState, values: Mapping[str, torch.Tensor] | None
) -> None:
    """Check rank 0's `values` for all ranks. Collective.

    Raises:
        ValueError: rank 0 has none, or names or shapes differ; the same on every rank.
    """
    fault = b"" if values is None else _GIVEN
    if state.transport.rank == 0 and values is not None:
        try:
            check_full(expected_shapes(model, state.handles), values)
        except ValueError as error:
            fault = str(error).encode()
    room = state.transport.max_exchange_bytes
    answers = state.transport.exchange(fault[:room])
    if not answers[0]:
        others = ", ".join(f"rank {rank}" for rank, answer in enumerate(answers) if answer)
        raise ValueError(
            "expected a full state dict on rank 0, got "
            + (f"None there and one on {others}" if others else "None on every rank")
            + "; let rank 0 read it, and give None on the others"
        )
    if answers[0] != _GIVEN:
        raise ValueError(answers[0].decode(errors="replace"))


def take_from_rank0(
    model: nn.Module, state: RuntimeState, values: Mapping[str, torch.Tensor] | None
) -> None:
    """Write rank 0's `values` into the shards, a message at a time. Collective.

    Raises:
        RuntimeError: rank 0 could not read a value (on every rank).
    """
    targets = [(handle.spec.name, *_own(handle, state.transport.rank)) for handle in state.handles]
    targets += [(name, 0, model.get_buffer(name)) for name in persistent_buffers(model)]
    for name, start, target in targets:
        source = _announce(name, values, state.transport)
        _receive(target, start, source, state.transport)


def _own(handle: ParameterHandle, rank: int) -> tuple[int, torch.Tensor]:
    fragment, piece = own_piece(handle, rank)
    return fragment.start, piece


def _announce(
    name: str, values: Mapping[str, torch.Tensor] | None, transport: Transport
) -> tuple[int, torch.Tensor | None]:
    """Number of elements to come and, on rank 0, the tensor; or the same error on every rank."""
    source, text = None, ""
    if transport.rank == 0:
        assert values is not None
        try:
            source = values[name].detach()
            text = str(source.numel())
        except Exception as error:  # whatever a lazy mapping raises
            text = f"{name!r} from rank 0: {type(error).__name__}: {error}"
    text = transport.exchange(text.encode()[: transport.max_exchange_bytes])[0].decode()
    if not text.isdecimal():
        raise RuntimeError(f"expected a tensor, got no {text}; load a complete one before going on")
    return int(text), source


def _receive(
    target: torch.Tensor,
    start: int,
    announced: tuple[int, torch.Tensor | None],
    transport: Transport,
) -> None:
    """Fill `target`, elements [start, start + numel) of a tensor whose pieces rank 0 sends."""
    total, source = announced
    limit = transport.max_exchange_bytes // target.dtype.itemsize  # elements
    flat = None if source is None else source.reshape(-1)
    local = target.reshape(-1)  # a view, unless it is not contiguous
    for first in range(0, total, limit):
        last = min(first + limit, total)
        payload = b""
        if flat is not None:
            piece = flat[first:last].to(target.dtype).contiguous()
            payload = piece.view(torch.uint8).numpy().tobytes()
        message = transport.exchange(payload)[0]
        low, high = max(first, start), min(last, start + local.numel())
        if low < high:
            received = torch.frombuffer(bytearray(message), dtype=target.dtype)
            local[low - start : high - start].copy_(received[low - first : high - first])
    if not target.is_contiguous():
        target.copy_(local.view(target.shape))
