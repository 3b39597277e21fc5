"""An exchange among the threads of one process, for tests and for trying rules out."""

import threading
from collections.abc import Sequence
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from sshsdp_updates.exchange import Message, check_messages


class InProcessWorld:
    """What the ranks of one process share; each runs in a thread of its own.

    Sums are taken in rank order. A rank that fails must call `abort`, or the others wait until
    the timeout.
    """

    def __init__(self, world: int, timeout: float = 20.0) -> None:
        """Connect `world` ranks that wait for each other at most `timeout` seconds."""
        self.world = world
        self.barrier = threading.Barrier(world, timeout=timeout)
        self.buffers = [torch.empty(0, dtype=torch.uint8)] * world
        self.parts = [torch.empty(0)] * world

    def ranks(self) -> "tuple[InProcessExchange, ...]":
        """Return every rank's exchange."""
        return tuple(InProcessExchange(self, rank) for rank in range(self.world))

    def abort(self) -> None:
        """Wake all ranks that wait with ``threading.BrokenBarrierError``."""
        self.barrier.abort()


class InProcessExchange:
    """One rank of an `InProcessWorld`: pulls from the buffers of the others."""

    def __init__(self, shared: InProcessWorld, rank: int) -> None:
        """Be `rank` of `shared`."""
        self.rank = rank
        self.world = shared.world
        self._shared = shared

    def reserve(self, nbytes: int) -> Tensor:
        """Allocate; the others read this buffer."""
        self._shared.buffers[self.rank] = torch.empty(nbytes, dtype=torch.uint8)
        return self._shared.buffers[self.rank]

    def compile(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Keep the messages that this rank receives."""
        check_messages(messages, self.rank, self.world, self._shared.buffers[self.rank].numel())
        return tuple(message for message in messages if message.target == self.rank)

    def start(self, program: tuple[Message, ...]) -> None:
        """Do nothing: what is sent is pulled while both ranks wait."""

    def wait(self, program: tuple[Message, ...]) -> None:
        """Pull when all ranks have come here, and leave when all have pulled."""
        buffers = self._shared.buffers
        self._shared.barrier.wait()
        for source, source_offset, target, target_offset, nbytes in program:
            buffers[target][target_offset : target_offset + nbytes].copy_(
                buffers[source][source_offset : source_offset + nbytes]
            )
        self._shared.barrier.wait()

    def all_reduce(self, tensor: Tensor, op: Literal["sum", "max"]) -> None:
        """Combine in rank order."""
        self._shared.parts[self.rank] = tensor.clone()
        self._shared.barrier.wait()
        total = reduce(torch.add if op == "sum" else torch.maximum, self._shared.parts)
        self._shared.barrier.wait()
        tensor.copy_(total)
