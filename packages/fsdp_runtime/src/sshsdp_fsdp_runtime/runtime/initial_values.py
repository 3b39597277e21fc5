"""Initial values: every rank ends with rank 0's, or with proof that they were equal."""

import hashlib
from typing import Literal

import torch
from torch import nn

from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle
from sshsdp_fsdp_runtime.runtime.pieces import store
from sshsdp_zerosm import Transport


def broadcast(tensor: torch.Tensor, transport: Transport) -> torch.Tensor:
    """Rank 0's values of `tensor`, 1-D, on every rank. Collective."""
    flat = tensor.detach().contiguous().view(-1)
    if transport.world == 1 or flat.numel() == 0:
        return flat
    source = flat.view(torch.uint8)
    limit = transport.max_exchange_bytes
    pieces = []
    for start in range(0, source.numel(), limit):
        piece = source[start : start + limit].numpy().tobytes() if transport.rank == 0 else b""
        pieces.append(transport.exchange(piece)[0])
    return torch.frombuffer(bytearray(b"".join(pieces)), dtype=flat.dtype)


def distribute(
    model: nn.Module,
    handles: list[ParameterHandle],
    transport: Transport,
    sync: Literal["rank0", "assert"],
) -> None:
    """Fill this rank's shards, and every buffer of the model, with the initial values. Collective.

    Raises:
        RuntimeError: with ``assert``, ranks were built with different values (on every rank).
    """
    if sync == "assert":
        _assert_equal(model, handles, transport)
    with torch.no_grad():
        for handle in handles:
            values = handle.parameter.detach()
            flat = broadcast(values, transport) if sync == "rank0" else values.reshape(-1)
            store(handle, flat, transport.rank)
        for buffer in model.buffers() if sync == "rank0" else ():
            if buffer.numel():
                buffer.copy_(broadcast(buffer, transport).view(buffer.shape))


def _assert_equal(model: nn.Module, handles: list[ParameterHandle], transport: Transport) -> None:
    parameters = [(handle.spec.name, handle.parameter) for handle in handles]
    tensors: list[tuple[str, torch.Tensor]] = [*parameters, *model.named_buffers()]
    total = hashlib.sha256(b"".join(_digest(tensor) for _, tensor in tensors)).digest()
    if len(set(transport.exchange(total))) > 1:
        raise RuntimeError(
            "expected equal initial values on all ranks with sync='assert', got different ones; "
            "seed every rank alike, or use sync='rank0' to take rank 0's"
        )


def _digest(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().view(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return hashlib.sha256(data).digest()
