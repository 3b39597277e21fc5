"""How fragments of temporaries travel between ranks: the protocol, and a world of one rank."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

P = TypeVar("P")


class Message(NamedTuple):
    """Bytes that go from one rank's reserved buffer to another's.

    Attributes:
        source: sending rank.
        source_offset: first byte, relative to the source's buffer.
        target: receiving rank, another one.
        target_offset: first byte, relative to the target's buffer.
        nbytes: how many, at least 1.
    """

    source: int
    source_offset: int
    target: int
    target_offset: int
    nbytes: int


class FragmentExchange(Protocol[P]):
    """Moves bytes between the reserved buffers of all ranks.

    Every method is called by all ranks in the same order. The type of a compiled program is the
    implementation's own. Source bytes of a program must stay as they are from `start` to `wait`,
    target bytes must not be touched; several programs may be under way if they share no target.

    Attributes:
        rank: this rank, from 0.
        world: number of ranks.
    """

    rank: int
    world: int

    def reserve(self, nbytes: int) -> Tensor:
        """Return this rank's buffer: 1-D uint8, 64-byte aligned, contents undefined.

        Called once, when an optimizer is built, with the same number on every rank.
        """

    def compile(self, messages: Sequence[Message]) -> P:
        """Prepare messages to be sent any number of times.

        Args:
            messages: those that this rank sends or receives, in an order that the two ranks of
                every message share; may be none.

        Raises:
            ValueError: a message without this rank, to itself, or beyond the buffer.
        """

    def start(self, program: P) -> None:
        """Begin; the source bytes are final."""

    def wait(self, program: P) -> None:
        """Return when this rank's target bytes have arrived and its source bytes are free."""

    def all_reduce(self, tensor: Tensor, op: Literal["sum", "max"]) -> None:
        """Replace a CPU tensor in place by the sum or maximum over ranks, bit-equal everywhere."""


class LocalExchange:
    """The exchange of a world of one rank: nothing ever travels."""

    rank = 0
    world = 1

    def __init__(self, device: torch.device | str = "cpu") -> None:
        """Reserve on `device`."""
        self._device = torch.device(device)

    def reserve(self, nbytes: int) -> Tensor:
        """Return a buffer from torch's allocator."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def compile(self, messages: Sequence[Message]) -> None:
        """Accept no message.

        Raises:
            ValueError: there is one.
        """
        check_messages(messages, self.rank, self.world, 0)

    def start(self, program: None) -> None:
        """Do nothing."""

    def wait(self, program: None) -> None:
        """Do nothing."""

    def all_reduce(self, tensor: Tensor, op: Literal["sum", "max"]) -> None:
        """Leave `tensor` as it is: one rank's sum and maximum are its own value."""


AnyExchange = FragmentExchange[Any]


def check_messages(messages: Sequence[Message], rank: int, world: int, nbytes: int) -> None:
    """Check that messages can be compiled.

    Args:
        messages: as given to `FragmentExchange.compile`.
        rank: the compiling rank.
        world: number of ranks.
        nbytes: of the reserved buffer, the same on every rank.

    Raises:
        ValueError: naming the first message that cannot.
    """
    for message in messages:
        ends = {message.source, message.target}
        last = max(message.source_offset, message.target_offset) + message.nbytes
        first = min(message.source_offset, message.target_offset)
        if len(ends) < 2 or rank not in ends or not all(0 <= end < world for end in ends):
            raise ValueError(
                f"expected messages between rank {rank} and another one of {world}, got {message}; "
                "leave out what other ranks exchange and what stays in place"
            )
        if message.nbytes < 1 or first < 0 or last > nbytes:
            raise ValueError(
                f"expected 1 or more bytes within the {nbytes} reserved ones, got {message}; "
                "reserve more, or leave the message out"
            )
