"""Small messages from every rank to every rank."""

from collections.abc import Sequence
from enum import IntEnum

from sshsdp_zerosm.board import EXCHANGE, MAILBOX_BYTES, Board
from sshsdp_zerosm.errors import TransportError
from sshsdp_zerosm.waiter import Waiter


class Kind(IntEnum):
    """Which collective call a message belongs to."""

    EXCHANGE = 1
    ARENA = 2
    SEAL = 3
    HANDOVER = 4


class Exchange:
    """An exchange under way: the own payload is posted, the others' may be outstanding."""

    def __init__(self, mailbox: "Mailbox", round_: int) -> None:
        self._mailbox = mailbox
        self._round = round_
        self._payloads: list[bytes] | None = None

    def wait(self) -> list[bytes]:
        """All ranks' payloads in rank order; calling it again gives the same list.

        Raises:
            ValueError: some rank's payload was larger than the mailbox (on every rank).
            TransportError: the ranks called different collectives, or a peer failed.
        """
        if self._payloads is None:
            self._payloads = self._mailbox.collect(self._round)
        return self._payloads


class Mailbox:
    """One slot pair per rank, on its board."""

    def __init__(self, rank: int, boards: Sequence[Board], waiter: Waiter) -> None:
        self._rank = rank
        self._boards = boards
        self._waiter = waiter
        self._others = tuple(peer for peer in range(len(boards)) if peer != rank)
        self._round = 0
        self._open = False

    def post(self, kind: Kind, payload: bytes) -> Exchange:
        """Show `payload` to all ranks; a too large one shows its size, and all ranks raise."""
        if self._open:
            raise TransportError(
                f"expected one exchange at a time, got a second one ({kind.name.lower()}) on rank "
                f"{self._rank}: call wait() of the first one before"
            )
        self._round += 1
        self._open = True
        board = self._boards[self._rank]
        size = len(payload)
        board.post(self._round, kind, payload if size <= MAILBOX_BYTES else b"", size)
        board.words[EXCHANGE] = self._round
        self._waiter.wake(EXCHANGE, self._others)
        return Exchange(self, self._round)

    def collect(self, round_: int) -> list[bytes]:
        """Wait for all ranks' messages of one round; see Exchange.wait."""
        if self._waiter.failure is not None:
            raise self._waiter.failure
        messages = []
        for peer, board in enumerate(self._boards):
            if board.words[EXCHANGE] < round_:
                self._waiter.wait(peer, EXCHANGE, round_, "exchange")
            messages.append(board.read(round_))
        self._open = False
        called = {peer: Kind(message[0]).name.lower() for peer, message in enumerate(messages)}
        if len(set(called.values())) > 1:
            calls = ", ".join(f"rank {peer} {name}" for peer, name in called.items())
            raise TransportError(f"expected the same collective call on all ranks, got {calls}")
        for peer, (_, size, _) in enumerate(messages):
            if size > MAILBOX_BYTES:
                raise ValueError(
                    f"expected payloads of at most {MAILBOX_BYTES} bytes, got {size} from rank "
                    f"{peer}: send it in parts or through an arena"
                )
        return [payload for _, _, payload in messages]
