"""An exchange over a torch.distributed process group."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from sshsdp_updates.exchange import Message, check_messages


@dataclass
class _Line:
    """All bytes of a program between this rank and one peer, in one direction.

    Attributes:
        peer: rank within the group.
        pieces: views of the reserved buffer.
        wire: what is sent or received: the piece itself if it is one, else memory of its own.
    """

    peer: int
    pieces: list[Tensor]
    wire: Tensor


@dataclass
class GroupProgram:
    """A compiled program: at most one message per peer and direction."""

    outgoing: list[_Line]
    incoming: list[_Line]
    works: list[dist.Work] = field(default_factory=list)


class ProcessGroupExchange:
    """Point-to-point messages of a process group, coalesced per pair of ranks.

    Works with any backend that sends and receives (gloo, NCCL). Ranks are those of the group.
    """

    def __init__(
        self, group: dist.ProcessGroup | None = None, device: torch.device | str = "cpu"
    ) -> None:
        """Exchange over `group` (None: the default one) between buffers on `device`."""
        self._group = group
        self._device = torch.device(device)
        self._buffer = torch.empty(0, dtype=torch.uint8, device=self._device)
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)

    def reserve(self, nbytes: int) -> Tensor:
        """Return a buffer from torch's allocator."""
        self._buffer = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        return self._buffer

    def compile(self, messages: Sequence[Message]) -> GroupProgram:
        """Join the messages of each pair of ranks, in the order given."""
        check_messages(messages, self.rank, self.world, self._buffer.numel())
        outgoing = [
            (target, offset, nbytes)
            for source, offset, target, _, nbytes in messages
            if source == self.rank
        ]
        incoming = [
            (source, offset, nbytes)
            for source, _, target, offset, nbytes in messages
            if target == self.rank
        ]
        return GroupProgram(self._lines(outgoing), self._lines(incoming))

    def start(self, program: GroupProgram) -> None:
        """Pack what goes to each peer and post one send and one receive per peer."""
        for line in program.outgoing:
            _pack(line)
        operations = [self._operation(dist.isend, line) for line in program.outgoing]
        operations += [self._operation(dist.irecv, line) for line in program.incoming]
        if operations:
            program.works = dist.batch_isend_irecv(operations)

    def wait(self, program: GroupProgram) -> None:
        """Wait for the peers and put what came where it belongs."""
        for work in program.works:
            work.wait()
        program.works = []
        for line in program.incoming:
            _unpack(line)

    def all_reduce(self, tensor: Tensor, op: Literal["sum", "max"]) -> None:
        """Combine with the group's own collective, on the device of the buffers."""
        moved = tensor.to(self._device)
        dist.all_reduce(
            moved, dist.ReduceOp.SUM if op == "sum" else dist.ReduceOp.MAX, group=self._group
        )
        if moved is not tensor:
            tensor.copy_(moved)

    def _operation(self, kind: Callable[..., Any], line: _Line) -> dist.P2POp:
        return dist.P2POp(kind, line.wire, group=self._group, group_peer=line.peer)

    def _lines(self, pieces: Sequence[tuple[int, int, int]]) -> list[_Line]:
        lines = []
        for peer, of_peer in groupby(sorted(pieces, key=lambda piece: piece[0]), lambda p: p[0]):
            views = [self._buffer[offset : offset + nbytes] for _, offset, nbytes in of_peer]
            total = sum(view.numel() for view in views)
            wire = views[0] if len(views) == 1 else torch.empty_like(self._buffer[:total])
            lines.append(_Line(peer, views, wire))
        return lines


def _pack(line: _Line) -> None:
    if len(line.pieces) > 1:
        torch.cat(line.pieces, out=line.wire)


def _unpack(line: _Line) -> None:
    if len(line.pieces) > 1:
        parts = torch.split_with_sizes(line.wire, [piece.numel() for piece in line.pieces])
        torch._foreach_copy_(line.pieces, list(parts))
