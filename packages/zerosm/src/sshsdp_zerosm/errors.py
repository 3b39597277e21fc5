"""What a transport raises. All derive from TransportError."""

from collections.abc import Mapping, Sequence


class TransportError(RuntimeError):
    """The transport can't do what was asked, or has failed earlier."""


class PeerDiedError(TransportError):
    """A rank's process is gone although its transport was not closed.

    Attributes:
        peers: the ranks that died, where they are known.
    """

    def __init__(self, text: str, peers: tuple[int, ...] = ()) -> None:
        self.peers = peers
        super().__init__(text)


class PeerClosedError(TransportError):
    """A rank closed its transport while another still waited for it."""


class OrderError(TransportError):
    """Ranks of an ordered transport ran different programs; the text says who ran what."""


class AbortedError(TransportError):
    """Some rank called ``abort(reason)``; the text names it and the reason."""


class DeadlockError(TransportError):
    """Loopback: no rank can make progress; the text says who waits for what."""


class WaitTimeoutError(TransportError):
    """A peer was late: alive, but its count did not come within the timeout.

    Attributes:
        peer: the rank that was waited for.
        channel: the name of the counter.
        expected: the count that was needed.
        seen: the count at the end of the wait.
        chain: the ranks that wait for each other from `peer` on, as far as it is known; the last
            one keeps all others waiting, or is there twice: ranks that wait in a circle.
    """

    def __init__(
        self,
        rank: int,
        peer: int,
        channel: str,
        expected: int,
        seen: int,
        after: float,
        chain: Sequence[int] = (),
        remedy: str = "",
        circle: Mapping[int, str] | None = None,
    ) -> None:
        self.peer = peer
        self.channel = channel
        self.expected = expected
        self.seen = seen
        self.chain = tuple(chain) or (peer,)
        waits = zip(self.chain, self.chain[1:], strict=False)
        others = "".join(f"Rank {each} waits for rank {other} itself. " for each, other in waits)
        late = remedy or f"Rank {self.chain[-1]} is alive but late: look at what it does"
        advice = f"{others}{late} or pass a longer timeout to connect()"
        if circle:
            calls = ", ".join(f"rank {each} on channel {at!r}" for each, at in circle.items())
            advice = (
                f"Ranks wait for each other in different calls ({calls}): make the same calls in "
                "the same order on all ranks, or see why one of these stands still"
            )
        super().__init__(
            f"rank {rank} waited {after:g} s for rank {peer} on channel {channel!r}: expected a "
            f"count of {expected}, got {seen}. {advice}"
        )
