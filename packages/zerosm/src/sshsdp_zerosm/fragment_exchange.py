"""Pieces of one arena travel between ranks by messages that are known beforehand."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import torch

from sshsdp_zerosm.arena import Arena
from sshsdp_zerosm.ops import Fence, Op, Pull, Put, Signal, Wait
from sshsdp_zerosm.program import Program
from sshsdp_zerosm.region import Region
from sshsdp_zerosm.schedule import Schedule
from sshsdp_zerosm.transport import Transport


class Message(Protocol):
    """Bytes that go from one rank's reserved buffer to another's; offsets are relative to it."""

    @property
    def source(self) -> int:
        """Sending rank."""

    @property
    def source_offset(self) -> int:
        """First byte at the source."""

    @property
    def target(self) -> int:
        """Receiving rank."""

    @property
    def target_offset(self) -> int:
        """First byte at the target."""

    @property
    def nbytes(self) -> int:
        """How many."""


class TransportExchange:
    """Reserve a buffer, compile messages between the ranks' buffers, start and wait for them.

    Within a node the receiver pulls as soon as the sender has started; between nodes the sender
    puts as soon as the receiver has started. It has the methods that optimizers of update units ask
    of an exchange of fragments. All ranks call them in the same order.

    Args:
        transport: connects the ranks.
        arena: the memory to reserve; None makes one when it is asked for.
        name: of that arena, and of channels.

    Attributes:
        rank: this rank.
        world: number of ranks.
    """

    def __init__(
        self, transport: Transport, arena: Arena | None = None, *, name: str = "fragments"
    ) -> None:
        self.rank = transport.rank
        self.world = transport.world
        self._transport = transport
        self._arena = arena
        self._name = name
        self._compiled = 0

    def reserve(self, nbytes: int) -> torch.Tensor:
        """This rank's buffer: 1-D uint8, contents undefined. Collective.

        Raises:
            ValueError: there is an arena of another size.
        """
        if self._arena is None:
            self._arena = self._transport.arena(self._name, nbytes)
        if nbytes != self._arena.nbytes:
            raise ValueError(
                f"expected to reserve the {self._arena.nbytes} bytes of arena "
                f"{self._arena.name!r}, got {nbytes}; plan the arena for what is exchanged"
            )
        return self._arena.tensor()

    def compile(self, messages: Sequence[Message]) -> Program:
        """Prepare messages that this rank sends or receives, to be sent any number of times.

        Raises:
            ValueError: a message without this rank, to itself, or beyond the reserved buffer.
        """
        assert self._arena is not None, "reserve() comes before compile()"
        for message in messages:
            self._check(message, self._arena.nbytes)
        name = f"{self._name}.{self._compiled}"
        self._compiled += 1
        return self._transport.compile(
            message_schedule(
                name,
                self.world,
                self._arena.name,
                # Peers hold other messages: each rank knows, and is asked for, its own part.
                lambda _: messages,
                lambda _, peer: self._transport.addressable(peer),
            )
        )

    def start(self, program: Program) -> None:
        """Begin; the source bytes are final and the target bytes are free."""
        program.run("start")

    def wait(self, program: Program) -> None:
        """Return when target bytes have arrived and source bytes are free."""
        program.run("wait")

    def all_reduce(self, tensor: torch.Tensor, op: Literal["sum", "max"]) -> None:
        """Replace a small CPU tensor in place by the sum or maximum over ranks, in rank order."""
        flat = tensor.view(-1)
        limit = self._transport.max_exchange_bytes // tensor.dtype.itemsize
        for start in range(0, flat.numel(), limit):
            self._all_reduce(flat[start : start + limit], op)

    def _all_reduce(self, piece: torch.Tensor, op: Literal["sum", "max"]) -> None:
        messages = self._transport.exchange(piece.numpy().tobytes())
        parts = [torch.frombuffer(bytearray(message), dtype=piece.dtype) for message in messages]
        total = parts[0]
        for part in parts[1:]:
            total = total + part if op == "sum" else torch.maximum(total, part)
        piece.copy_(total)

    def _check(self, message: Message, reserved: int) -> None:
        ends = {message.source, message.target}
        outside = not all(0 <= end < self.world for end in ends)
        if len(ends) < 2 or self.rank not in ends or outside:
            raise ValueError(
                f"expected messages between rank {self.rank} and another one of {self.world}, got "
                f"{message}; leave out what other ranks exchange and what stays in place"
            )
        first = min(message.source_offset, message.target_offset)
        last = max(message.source_offset, message.target_offset) + message.nbytes
        if message.nbytes < 1 or first < 0 or last > reserved:
            raise ValueError(
                f"expected 1 or more bytes within the {reserved} reserved ones, got {message}; "
                "reserve more, or leave the message out"
            )


def message_schedule(
    name: str,
    world: int,
    arena: str,
    messages_of: Callable[[int], Sequence[Message]],
    addressable: Callable[[int, int], bool],
) -> Schedule:
    """Phases "start" and "wait" of an exchange that is run again and again.

    Args:
        name: of the schedule, and of its channels.
        world: number of ranks.
        arena: that offsets are relative to.
        messages_of: rank -> those that it sends or receives.
        addressable: (rank, peer) -> whether the rank can read the peer's memory.
    """
    started, ended = f"{name}.started", f"{name}.ended"

    def ops(rank: int) -> _Ops:
        return _Ops(rank, messages_of(rank), arena, lambda peer: addressable(rank, peer))

    return Schedule(
        name,
        world,
        {
            "start": lambda rank: ops(rank).start(started),
            "wait": lambda rank: ops(rank).wait(started, ended),
        },
        (started, ended),
    )


class _Ops:
    """What one rank does for its messages."""

    def __init__(
        self,
        rank: int,
        messages: Sequence[Message],
        arena: str,
        addressable: Callable[[int], bool],
    ) -> None:
        self._arena = arena
        self._received = [m for m in messages if m.target == rank]
        self._sent = [m for m in messages if m.source == rank]
        self._peers = tuple(sorted({e for m in messages for e in (m.source, m.target)} - {rank}))
        self._addressable = addressable

    def start(self, started: str) -> Sequence[Op]:
        """Say that own sources are final and own targets free."""
        return (Signal(started, self._peers),) if self._peers else ()

    def wait(self, started: str, ended: str) -> Sequence[Op]:
        """Move what this rank moves, then hear from all peers that they have."""
        if not self._peers:
            return ()
        pulls = [
            Pull(*self._ends(message))
            for message in self._received
            if self._addressable(message.source)
        ]
        puts = [
            Put(*self._ends(message))
            for message in self._sent
            if not self._addressable(message.target)
        ]
        return (
            *(Wait(peer, started) for peer in self._peers),
            *puts,
            *pulls,
            Signal(ended, self._peers),
            *(Wait(peer, ended) for peer in self._peers),
            *(Fence(put.source) for put in puts),
        )

    def _ends(self, message: Message) -> tuple[Region, Region]:
        return (
            Region(self._arena, message.source, message.source_offset, message.nbytes),
            Region(self._arena, message.target, message.target_offset, message.nbytes),
        )
