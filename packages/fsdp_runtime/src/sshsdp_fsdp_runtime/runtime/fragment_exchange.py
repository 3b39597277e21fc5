"""Parts of update units travel between ranks over the transport: `sshsdp_updates`' protocol."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from sshsdp_fsdp_runtime.runtime.steps import ExchangeReducer
from sshsdp_updates import Message
from sshsdp_zerosm import (
    Arena,
    Fence,
    Op,
    Program,
    Pull,
    Put,
    Region,
    Schedule,
    Signal,
    Transport,
    Wait,
)


class TransportExchange:
    """`sshsdp_updates.FragmentExchange` over an arena of a transport.

    Within a node the receiver pulls, as soon as the sender has started; between nodes the sender
    puts, as soon as the receiver has started.

    Args:
        transport: connects the ranks.
        arena: the memory to reserve; None where the plan needs none.

    Attributes:
        rank: this rank.
        world: number of ranks.
    """

    def __init__(self, transport: Transport, arena: Arena | None) -> None:
        self.rank = transport.rank
        self.world = transport.world
        self._transport = transport
        self._arena = arena
        self._reducer = ExchangeReducer(transport)
        self._compiled = 0

    def reserve(self, nbytes: int) -> torch.Tensor:
        """The planned memory.

        Raises:
            ValueError: the plan has other memory than is asked for.
        """
        planned = 0 if self._arena is None else self._arena.nbytes
        if nbytes != planned:
            raise ValueError(
                f"expected to reserve the {planned} bytes of the plan, got {nbytes}; plan and "
                "optimizer are of different rules"
            )
        return torch.empty(0, dtype=torch.uint8) if self._arena is None else self._arena.tensor()

    def compile(self, messages: Sequence[Message]) -> Program:
        """Prepare messages that this rank sends or receives."""
        name = f"{self._arena.name if self._arena else 'exchange'}.{self._compiled}"
        self._compiled += 1
        started, ended = f"{name}.started", f"{name}.ended"
        ops = _Ops(self.rank, messages, self._region, self._transport.addressable)
        return self._transport.compile(
            Schedule(
                name,
                self.world,
                {
                    # Peers hold other messages: each rank knows, and is asked for, its own part.
                    "start": lambda _: ops.start(started),
                    "wait": lambda _: ops.wait(started, ended),
                },
                (started, ended),
            )
        )

    def start(self, program: Program) -> None:
        """Begin; the source bytes are final and the target bytes are free."""
        program.run("start")

    def wait(self, program: Program) -> None:
        """Return when target bytes have arrived and source bytes are free."""
        program.run("wait")

    def all_reduce(self, tensor: torch.Tensor, op: Literal["sum", "max"]) -> None:
        """Replace a CPU tensor in place by the sum or maximum over ranks."""
        self._reducer.all_reduce(tensor, op)

    def _region(self, rank: int, offset: int, nbytes: int) -> Region:
        assert self._arena is not None
        return Region(self._arena.name, rank, offset, nbytes)


class _Ops:
    """What one rank does for its messages."""

    def __init__(
        self,
        rank: int,
        messages: Sequence[Message],
        region: Callable[[int, int, int], Region],
        addressable: Callable[[int], bool],
    ) -> None:
        self._region = region
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
            self._region(message.source, message.source_offset, message.nbytes),
            self._region(message.target, message.target_offset, message.nbytes),
        )
