"""One rank's connections to ranks whose memory it doesn't share."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

import torch

from sshsdp_zerosm.board import ABORTED, AWAITED, BARRIER, CLOSED, EXCHANGE, GENERATION, Board
from sshsdp_zerosm.distress import Distress
from sshsdp_zerosm.errors import OrderError, PeerDiedError, TransportError, WaitTimeoutError
from sshsdp_zerosm.meeting import Meeting
from sshsdp_zerosm.process_group.frame import Frame, FrameKind
from sshsdp_zerosm.process_group.group import Group, open_group
from sshsdp_zerosm.process_group.order import Order
from sshsdp_zerosm.process_group.receiver import Receiver
from sshsdp_zerosm.process_group.sender import NOBODY, Sender, as_payload
from sshsdp_zerosm.waiter import find_abort, give_up, peer_closed, peers_lost

_STUCK = 0.5  # seconds without progress after which a rank says where it is
_ANSWERS = 2.0  # seconds to wait for the others' reports
_FAREWELL = 5.0  # seconds to wait for the others' last messages


class Network:
    """Sends this rank's counters and bytes, and applies what the others send.

    What a far rank writes to its board arrives on a copy of it here, a *mirror*, so that waiting,
    exchanges and barriers are the same code as for shared boards.

    Args:
        meeting: of the ranks.
        boards: of all ranks: the own one, mirrors of the far ones; others are only looked at.
        far: ranks whose boards are mirrors.

    Attributes:
        order: of the runs of all ranks.
        arrived: notified after every message.
        failure: that ended the transport.
    """

    def __init__(
        self,
        meeting: Meeting,
        boards: Sequence[Board],
        far: Iterable[int],
    ) -> None:
        self._rank = rank = meeting.rank
        self._boards = boards
        self._far = frozenset(far)
        self._timeout = meeting.timeout
        self._on_failure: Callable[[TransportError], None] | None = None
        self._memories: list[torch.Tensor] = []
        self.order = Order(rank)
        self.arrived = threading.Condition()
        self.failure: TransportError | None = None
        self._marks = {
            BARRIER: self.order.name("a barrier"),
            EXCHANGE: self.order.name("a collective call (exchange, arena or seal)"),
            GENERATION: self.order.name("publish"),
        }
        self._lost: set[int] = set()
        self._left: set[int] = set()
        self._closing = False
        self._reminded = (0, rank, "")
        self._reported_at: float | None = None
        self._report_lock = threading.Lock()
        group = _open_group(meeting)
        self._group = group
        peers = [peer for peer in range(len(boards)) if peer != rank]
        self._senders = {
            peer: Sender(rank, peer, group, self.order, meeting.timeout, self._on_send_error)
            for peer in peers
        }
        self._receivers: list[Receiver] = []

    def start(self, on_failure: Callable[[TransportError], None]) -> None:
        """Begin to receive; `on_failure` is told of an error that ends the transport."""
        self._on_failure = on_failure
        self._receivers = [Receiver(peer, self._group, self) for peer in self._senders]
        for receiver in self._receivers:
            receiver.start()

    def sender(self, peer: int) -> Sender:
        """The way to one peer."""
        return self._senders[peer]

    def register(self, memory: torch.Tensor) -> int:
        """The next arena's memory on this rank; the same order on all ranks. Returns its number."""
        self._memories.append(memory)
        return len(self._memories) - 1

    def forget(self, arena: int) -> None:
        """Let go of a memory; a message that is still sent there is an error."""
        self._memories[arena] = torch.empty(0, dtype=torch.uint8)

    def enter(self, mark: int) -> None:
        """This rank starts a run."""
        self.order.enter(mark)
        if self.order.differs:
            self._settle()

    def announce(self, word: int, to: Iterable[int]) -> None:
        """Tell far ranks that a word of the own board was raised."""
        board = self._boards[self._rank]
        if word in self._marks:
            self.enter(self._marks[word])
        if word == ABORTED:
            for peer in to:
                self._senders[peer].send_apart(FrameKind.ABORT, board.reason.encode())
        elif word == EXCHANGE:
            round_ = board.words[EXCHANGE]
            kind, size, payload = board.read(round_)
            message = as_payload(payload)
            for peer in to:
                self._senders[peer].send(FrameKind.MAIL, round_, kind, size, message)
        else:
            # A channel's tag lies behind its counter.
            value, tag = board.words[word], board.words[word + 1]
            for peer in to:
                self._senders[peer].send(FrameKind.WORD, word, value, tag)

    def check(self, source: int) -> TransportError | None:
        """Why a wait for `source` is hopeless, or None."""
        if self.order.differs:
            self._settle()
        if self.order.differs or self.failure is not None:
            return self.failure  # None until all reports are there
        if error := find_abort(self._boards):
            return error
        if self._lost:
            return peers_lost(self._rank, self._lost)
        if self._boards[source].words[CLOSED]:
            return peer_closed(self._rank, source)
        self.remind(source)
        return None

    def awaits(self, peer: int) -> bool:
        """Whether there may be news of a `peer` that has closed, or of who ran what."""
        if self.order.differs:
            return self.failure is None
        return peer not in self._left and peer not in self._lost

    def note(self, error: TransportError) -> None:
        """This rank has failed: of the dead the others hear at the end, of the late ones now."""
        if isinstance(error, PeerDiedError):
            self._lost.update(error.peers)
        if isinstance(error, WaitTimeoutError):
            give_up(self._boards[self._rank], error)
            self.announce(ABORTED, self._far)

    def close(self) -> None:
        """Take leave of everyone; returns when the others have answered, or don't."""
        self._closing = True
        news = self._news()
        for sender in self._senders.values():
            sender.send_apart(FrameKind.LAST, news)
        self._join(time.monotonic() + min(_FAREWELL, self._timeout))
        stuck = [receiver for receiver in self._receivers if receiver.is_alive()]
        for receiver in stuck:
            self._break_connections(receiver.peer)
        if stuck:
            self._join(time.monotonic() + _FAREWELL)
        for sender in self._senders.values():
            sender.release()
        self._receivers.clear()
        self._memories.clear()
        del self._group

    # The rest is called by receivers.

    def memory(self, arena: int) -> torch.Tensor:
        """See Inbox."""
        return self._memories[arena]

    def take(self, peer: int, frame: Frame, payload: bytes) -> None:
        """See Inbox."""
        board = self._boards[peer]
        kind = FrameKind(frame.kind)
        if peer in self._far:
            if kind is FrameKind.PLACE:
                board.awaited_channel = payload.decode(errors="replace")
            board.words[AWAITED] = frame.a if kind is FrameKind.PLACE else 0
        if kind is FrameKind.WORD:
            board.words[frame.a + 1] = frame.c
            board.words[frame.a] = frame.b
        elif kind is FrameKind.MAIL:
            board.post(frame.a, frame.b, payload, frame.c)
            board.words[EXCHANGE] = frame.a
        elif kind is FrameKind.ABORT:
            board.reason = payload.decode(errors="replace")
            board.words[ABORTED] = 1
        elif kind is FrameKind.REPORT:
            self.order.add_report(peer, payload)
            self.order.differs = True
        elif kind is FrameKind.LAST:
            self._part(peer, payload)
        self.order.compare(frame.runs, frame.chain)
        if self.order.differs:
            self._settle()
        with self.arrived:
            self.arrived.notify_all()

    def lose(self, peer: int) -> None:
        """See Inbox."""
        ours = self._closing or any(sender.overdue for sender in self._senders.values())
        if not ours and peer not in self._left:
            self._lost.add(peer)
        with self.arrived:
            self.arrived.notify_all()

    def fail(self, error: Exception) -> None:
        """See Inbox."""
        if self.failure is None:
            if not isinstance(error, TransportError):
                error = TransportError(f"rank {self._rank} can't apply a message: {error!r}")
            self.failure = error
            if self._on_failure is not None:
                self._on_failure(error)
        with self.arrived:
            self.arrived.notify_all()

    def _part(self, peer: int, payload: bytes) -> None:
        self._left.add(peer)
        if payload and not self._closing:
            died, aborted, report = json.loads(payload)
            self._lost.update(set(died) - {self._rank})
            for rank, reason in aborted:
                if rank in self._far:
                    self._boards[rank].reason = reason
                    self._boards[rank].words[ABORTED] = 1
            self.order.add_report(peer, report.encode())
        if peer in self._far:
            self._boards[peer].words[CLOSED] = 1
        self._senders[peer].send_apart(FrameKind.LAST)

    def _news(self) -> bytes:
        """What others should know of why this rank leaves, before they know that it does."""
        aborted = [
            (rank, board.reason) for rank, board in enumerate(self._boards) if board.words[ABORTED]
        ]
        return json.dumps([sorted(self._lost), aborted, self.order.report().decode()]).encode()

    def _on_send_error(self, peer: int, error: TransportError | None) -> None:
        if error is None:
            self.lose(peer)
        else:
            self.note(error)
            self.fail(error)

    def _settle(self) -> None:
        """Tell all others what this rank has run, and fail when they have told it too."""
        with self._report_lock:
            if self.failure is not None:
                return
            if self._reported_at is None:
                self._reported_at = time.monotonic()
                report = self.order.report()
                for sender in self._senders.values():
                    sender.send_apart(FrameKind.REPORT, report)
            there = set(range(len(self._boards))) - self._lost
            if self.order.complete(there) or time.monotonic() > self._reported_at + _ANSWERS:
                self.fail(OrderError(self.order.explain(range(len(self._boards)))))

    def remind(self, source: int) -> None:
        """Say where this rank is, and for whom it waits, if it has been there for long.

        A peer may be elsewhere, or wait for this rank.
        """
        channel = self._boards[self._rank].awaited_channel
        place = self.order.place[0], source, channel
        if place != self._reminded and time.monotonic() > self.order.since + _STUCK:
            self._reminded = place
            for sender in self._senders.values():
                sender.send(FrameKind.PLACE, source + 1, payload=as_payload(channel.encode()))

    def _join(self, deadline: float) -> None:
        for receiver in self._receivers:
            receiver.join(max(0.0, deadline - time.monotonic()))

    def _break_connections(self, peer: int) -> None:
        """Wake the threads that wait for a peer that is stopped, and so answers nothing.

        gloo's group breaks all its connections when one wait takes too long. It has to be one for
        a rank that is still connected: others end at once, and nothing breaks.
        """
        with contextlib.suppress(RuntimeError):  # always: of the time, or of a broken connection
            never = self._group.recv([torch.empty(1, dtype=torch.uint8)], peer, NOBODY)
            never.wait(timedelta(milliseconds=1))


def _open_group(meeting: Meeting) -> Group:
    """Connect over gloo, which knows one timeout and no reasons, when all ranks are ready to."""
    rank, world = meeting.rank, len(meeting.cards)
    distress = Distress(meeting.store, rank, world)
    distress.gather(meeting.timeout)
    try:
        return open_group(rank, world, meeting.store, meeting.timeout)
    except TransportError as error:
        if heard := distress.hear():
            raise heard from error
        raise
