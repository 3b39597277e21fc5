"""One small message per rank and turn, posted now and collected when somebody needs it."""

from sshsdp_zerosm import Schedule, Signal, Transport, Wait

_LIVE = 8  # bytes of the number shown outside of turns


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
        self._memories[self._rank][:_LIVE] = list(value.to_bytes(_LIVE, "little"))

    def shown(self) -> list[int]:
        """The number that every rank shows now."""
        return [int.from_bytes(memory[:_LIVE].tobytes(), "little") for memory in self._memories]

    def _turn_bytes(self) -> slice:
        start = _LIVE + (self._turn % 2) * self._nbytes
        return slice(start, start + self._nbytes)
