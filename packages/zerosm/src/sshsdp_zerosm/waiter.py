"""What a rank does when a count that it needs isn't there yet."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from sshsdp_zerosm.board import ABORTED, AWAITED, Board
from sshsdp_zerosm.errors import (
    AbortedError,
    PeerClosedError,
    PeerDiedError,
    TransportError,
    WaitTimeoutError,
)


class Waiter(Protocol):
    """Blocks for, and wakes, other ranks. The fast paths never get here."""

    failure: TransportError | None

    def wait(self, source: int, word: int, need: int, channel: str) -> None:
        """Return once word `word` of rank `source` is at least `need`.

        Raises:
            TransportError: it can't be, or took longer than the timeout. The error is kept in
                `failure`.
        """

    def wake(self, word: int, to: Iterable[int]) -> None:
        """The own word was raised: wake the ranks in `to` if they sleep."""


def find_abort(boards: Sequence[Board]) -> AbortedError | None:
    """The error for the first rank that has aborted, or None."""
    for rank, board in enumerate(boards):
        if board.words[ABORTED]:
            return AbortedError(f"rank {rank} aborted: {board.reason}")
    return None


def chain_of_waits(boards: Sequence[Board], first: int) -> tuple[int, ...]:
    """`first`, the rank that it waits for, the rank that this one waits for, and so on.

    In a circle the last one is there twice.
    """
    chain = [first]
    while len(set(chain)) == len(chain):
        awaited = boards[chain[-1]].words[AWAITED] - 1
        if awaited < 0:
            break
        chain.append(awaited)
    return tuple(chain)


def too_late(
    boards: Sequence[Board],
    rank: int,
    source: int,
    channel: str,
    counts: tuple[int, int],
    after: float,
) -> WaitTimeoutError:
    """The error for a wait of `rank` for `source` that took `after` seconds.

    Args:
        boards: of all ranks.
        rank: the one that gives up.
        source: the one that it waited for.
        channel: the name of the counter.
        counts: what was needed, and what was there.
        after: seconds.
    """
    chain = chain_of_waits(boards, source)
    circle = sorted(chain[chain.index(chain[-1]) : -1])
    waits = {each: boards[each].awaited_channel for each in circle}
    return WaitTimeoutError(rank, source, channel, *counts, after, chain, circle=waits)


def give_up(board: Board, error: TransportError) -> None:
    """This rank waits no longer, for good: whoever waits for it should hear why, and now."""
    board.reason = f"{type(error).__name__}: {error}"
    board.words[ABORTED] = 1


def peers_died(rank: int, peers: Iterable[int]) -> PeerDiedError:
    """The error for ranks that ended without a word, as seen by `rank`."""
    found = f"died: the process ended without closing its transport, as seen by rank {rank}"
    return _gone(peers, found, "")


def peers_lost(rank: int, peers: Iterable[int]) -> PeerDiedError:
    """The error for ranks of which nothing is known but that their connections to `rank` broke."""
    found = f"died or can't be reached: connections to rank {rank} ended without a farewell"
    return _gone(peers, found, " and at the network,")


def _gone(peers: Iterable[int], found: str, also: str) -> PeerDiedError:
    """The error for `peers`: what was found of them, and where to look beside their output."""
    gone = tuple(sorted(peers))
    names = ", ".join(f"rank {peer}" for peer in gone)
    return PeerDiedError(
        f"{names} {found}; look at the output of {names}{also} and start all ranks again", gone
    )


def peer_closed(rank: int, peer: int) -> PeerClosedError:
    """The error for a wait of `rank` for a rank that has left."""
    return PeerClosedError(
        f"rank {rank} waits for rank {peer}, which has closed its transport: look at why rank "
        f"{peer} ended before the others"
    )
