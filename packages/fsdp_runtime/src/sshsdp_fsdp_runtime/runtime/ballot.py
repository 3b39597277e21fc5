"""One small message per rank and turn, posted now and collected when somebody needs it."""

import numpy as np

from sshsdp_zerosm import Schedule, Signal, Transport, Wait

_VALUE, _POSTED = 0, 1  # numbers that a rank shows outside of turns: a value, and turns posted
_LIVE = 16  # bytes of them


class Ballot:
    """Every rank posts `nbytes` bytes; collecting returns all ranks' bytes in rank order.

    Posting never blocks. Memory is doubled: a rank posts turn n + 1 only after it has collected
    turn n, hence after everybody has posted turn n and has read turn n - 1.
    """

    def __init__(self, transport: Transport, name: str, nbytes: int) -> None:
        self._nbytes = nbytes
        self._turn = 0
        self.open = False
        arena = transport.arena(name, _LIVE + 2 * nbytes)
        self._memories = [arena.tensor(rank).numpy() for rank in range(transport.world)]
        self._numbers = [memory[:_LIVE].view(np.int64) for memory in self._memories]
        self._rank = transport.rank
        ranks = range(transport.world)
        others = [tuple(peer for peer in ranks if peer != rank) for rank in ranks]
        self._program = transport.compile(
            Schedule(
                name,
                transport.world,
                {
                    "post": tuple((Signal(name, others[rank]),) for rank in ranks),
                    "collect": tuple(
                        tuple(Wait(peer, name) for peer in others[rank]) for rank in ranks
                    ),
                },
            )
        )

    def post(self, payload: bytes) -> None:
        """Make `payload` (at most the ballot's size) readable by the others."""
        assert not self.open
        assert len(payload) <= self._nbytes
        memory = self._memories[self._rank][self._turn_bytes()]
        memory[:] = list(payload.ljust(self._nbytes, b"\0"))
        self._numbers[self._rank][_POSTED] = self._turn + 1
        self._program.run("post")
        self.open = True

    def collect(self) -> list[bytes]:
        """Wait until all ranks have posted this turn; their messages, padded with zeros."""
        assert self.open
        self._program.run("collect")
        messages = [memory[self._turn_bytes()].tobytes() for memory in self._memories]
        self.open = False
        self._turn += 1
        return messages

    def show(self, value: int) -> None:
        """Show a number to the others at once, outside of any turn."""
        self._numbers[self._rank][_VALUE] = value

    def shown_by_absent(self) -> list[int]:
        """The numbers that ranks show which have not posted this turn; it must be open here."""
        assert self.open
        # The value first: a rank that went on after this turn has posted it before.
        shown = [(int(own[_VALUE]), int(own[_POSTED])) for own in self._numbers]
        return [value for value, posted in shown if posted <= self._turn]

    def _turn_bytes(self) -> slice:
        start = _LIVE + (self._turn % 2) * self._nbytes
        return slice(start, start + self._nbytes)
