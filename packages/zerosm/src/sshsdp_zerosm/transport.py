"""The contract that all transports keep, and what they have in common."""

import contextlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from sshsdp_zerosm.arena import Arena
from sshsdp_zerosm.board import ABORTED, BARRIER, CLOSED, GENERATION, MAILBOX_BYTES, Board
from sshsdp_zerosm.compiler import Compiler
from sshsdp_zerosm.counters import Counters
from sshsdp_zerosm.errors import AbortedError, TransportError
from sshsdp_zerosm.forks import Inherited
from sshsdp_zerosm.mailbox import Exchange, Kind, Mailbox
from sshsdp_zerosm.program import Program
from sshsdp_zerosm.remote import Remote
from sshsdp_zerosm.schedule import Schedule
from sshsdp_zerosm.topology import Topology
from sshsdp_zerosm.waiter import Waiter
from sshsdp_zerosm.waits import TimedWaiter, Waits


class Transport(ABC):
    """One rank's end. Used by one thread at a time.

    Collective calls (`arena`, `seal`, `exchange`, `idle`, `publish`, `barrier`, `close`) are made
    by all ranks in the same order. A transport that raised a TransportError while it waited has
    failed for good and raises it again; close it.

    Attributes:
        rank: this rank.
        world: number of ranks.
        topology: which ranks share a node.
        max_exchange_bytes: longest payload of an exchange.
        timeout: seconds that a wait may take.
        external_bytes: memory of arenas and control pages that this rank created, whole pages.
        counters: what this rank has moved.
        waits: how long this rank has waited for others.
        forked: this is a copy in a process that was forked off the one that connected; every use
            raises TransportError, and `close` touches nothing that the parent uses.
        store: the torch.distributed store over which the ranks met; None in a world of one.
    """

    store: Any = None
    forked: bool = False
    max_exchange_bytes: int = MAILBOX_BYTES

    def __init__(
        self,
        rank: int,
        world: int,
        timeout: float,
        boards: Sequence[Board],
        waiter: Waiter,
        topology: Topology | None = None,
        remote: Remote | None = None,
    ) -> None:
        self.rank = rank
        self.world = world
        self.topology = Topology.single(world) if topology is None else topology
        self.timeout = timeout
        self.counters = Counters()
        self.external_bytes = 0
        self._boards = boards
        self._own = boards[rank]
        self._others = tuple(peer for peer in range(world) if peer != rank)
        self.waits = Waits()
        self._waiter = waiter  # looked at before every program: directly
        self._timed = timed = TimedWaiter(waiter, self.waits)
        self._mailbox = Mailbox(rank, boards, timed)
        self._arenas: dict[str, Arena] = {}
        self._compiler = Compiler(rank, self._arenas, boards, timed, self.addressable, remote)
        self._programs: weakref.WeakSet[Program] = weakref.WeakSet()
        self._users: weakref.WeakSet[Inherited] = weakref.WeakSet()
        self._sealed = False
        self._closed = False
        self._failed = False

    @property
    def failed(self) -> bool:
        """Whether a rank died, was late, aborted or left too early, as far as this one knows."""
        return self._failed or (not self._closed and self._waiter.failure is not None)

    def arena(self, name: str, nbytes: int, *, shared: bool = False) -> Arena:
        """Collective: zeroed memory of `nbytes` bytes per rank (`shared`: per node).

        Raises:
            TypeError: a name that is no text, or a size that is no int; the transport can still be
                used.
            ValueError: a name that is taken, or a negative size.
            TransportError: after `seal`; ranks that ask for different things, or for more memory
                than the host has (the same error on every rank).
        """
        self.check_usable()
        if not isinstance(name, str) or not isinstance(nbytes, int):
            raise TypeError(
                f"expected the name of an arena and its bytes as an int, got {name!r} and "
                f'{nbytes!r}; write arena("name", 4096)'
            )
        if self._sealed:
            raise TransportError(
                f"expected all arenas before seal(), got {name!r} after it: plan the memory and "
                f"register it at the start"
            )
        self._agree(name, nbytes, shared)
        if name in self._arenas or nbytes < 0:
            raise ValueError(
                f"expected a new arena name and nbytes >= 0, got {name!r} and {nbytes}; there are "
                f"{', '.join(self._arenas) or 'no arenas'}"
            )
        before = self.external_bytes
        self._arenas[name] = arena = self._create(name, nbytes, shared)
        arena.created_bytes = self.external_bytes - before
        return arena

    def release(self, names: Iterable[str]) -> None:
        """Let go of arenas: their memory goes with the last tensor and program over them.

        Every rank does so after it has run its last program over them, and does not wait for the
        others: what they still map stays with them. A name may then be given again. After `close`
        this is nothing.

        Raises:
            ValueError: there is no such arena; nothing was released.
        """
        if self._closed:
            return
        names = list(names)
        if unknown := [name for name in names if name not in self._arenas]:
            raise ValueError(
                f"expected names of arenas, got {unknown}; there are "
                f"{', '.join(self._arenas) or 'none'}"
            )
        for name in names:
            arena = self._arenas.pop(name)
            self.external_bytes -= arena.created_bytes
            arena.release()
            self._forget(name)

    def seal(self) -> None:
        """Collective: from now on there are no new arenas."""
        self.check_usable()
        if not self._sealed:
            self._seal()
            self._sealed = True

    def addressable(self, rank: int) -> bool:
        """Whether this rank reads `rank`'s memory directly (Pull, Reduce)."""
        return self.topology.node_of(rank) == self.topology.node_of(self.rank)

    def compile(self, schedule: Schedule) -> Program:
        """Resolve a schedule's addresses; all ranks compile the same schedules in the same order.

        Raises:
            ValueError: the schedule doesn't fit this world, its arenas or channels in use.
        """
        self.check_usable()
        program = self._compiler.compile(schedule, self)
        self._programs.add(program)
        return program

    def exchange(self, payload: bytes) -> list[bytes]:
        """Collective: every rank's payload, in rank order; sizes may differ.

        Raises:
            ValueError: some payload is larger than the mailbox (the same error on every rank).
        """
        return self.start_exchange(payload).wait()

    def start_exchange(self, payload: bytes) -> Exchange:
        """Collective: show `payload` to the others; ``wait()`` of the result gives theirs.

        One may be open at a time.

        Raises:
            TypeError: no bytes; the transport can still be used.
        """
        self.check_usable()
        if not isinstance(payload, bytes | bytearray):
            raise TypeError(
                f"expected bytes to exchange, got {type(payload).__name__}; encode text, or use "
                "an arena for tensors"
            )
        return self._mailbox.post(Kind.EXCHANGE, payload)

    @property
    def generation(self) -> int:
        """How often this rank has published."""
        self.check_usable()
        return self._own.words[GENERATION]

    def idle(self) -> None:
        """Collective: when it returns no rank reads what peers may read, until `publish`."""
        self.barrier()

    def publish(self) -> None:
        """Collective: what peers may read is complete; raises the generation. Never blocks."""
        self.check_usable()
        self._own.words[GENERATION] += 1
        self._waiter.wake(GENERATION, self._others)

    def barrier(self) -> None:
        """Collective: returns when all ranks have called it."""
        self.check_usable()
        words = self._own.words
        need = words[BARRIER] + 1
        words[BARRIER] = need
        self._waiter.wake(BARRIER, self._others)
        for peer in self._others:
            if self._boards[peer].words[BARRIER] < need:
                self._timed.wait(peer, BARRIER, need, "barrier")

    def abort(self, reason: str) -> None:
        """Make every rank's waits, now and later, raise AbortedError with `reason`."""
        if self._closed:
            return
        self.check_process()
        self._own.reason = reason
        self._own.words[ABORTED] = 1
        self._waiter.wake(ABORTED, self._others)
        self._waiter.failure = self._waiter.failure or AbortedError(
            f"rank {self.rank} aborted: {reason}"
        )

    def close(self) -> None:
        """Release everything that no live tensor needs; every rank calls it, in any state.

        It doesn't wait for the others, and calling it again does nothing.
        """
        if self._closed:
            return
        self._failed, self._closed = self.failed, True
        if not self.forked:
            self._waiter.failure = TransportError(
                "expected an open transport, got a closed one: connect again"
            )
            self._own.words[CLOSED] = 1
            self._disconnect()
        for program in self._programs:
            program.release()
        for arena in self._arenas.values():
            arena.release()
        self._arenas.clear()

    def check_usable(self) -> None:
        """TransportError if this transport is closed or has failed."""
        if self._waiter.failure is not None:
            raise self._waiter.failure

    def check_process(self) -> None:
        """TransportError in a fork of the process that connected; before memory is written."""
        if self.forked:
            self.check_usable()

    def tell_forks(self, user: Inherited) -> None:
        """Have `user`, as long as it lives, told in forks, too, that it is the parent's."""
        self._users.add(user)

    def leave_to_parent(self) -> None:
        """Called in a fork: refuse every use, so that the parent is not disturbed."""
        self.forked = True
        self._waiter.failure = TransportError(
            f"expected the process that connected as rank {self.rank}, got a fork of it: use "
            f"models and transport there, and give forked processes copies of what they need, or "
            f"fork before connect()"
        )
        for user in list(self._users):
            user.leave_to_parent()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; on an exception that isn't the transport's own, abort first."""
        if error is not None and not isinstance(error, TransportError):
            with contextlib.suppress(TransportError):
                self.abort(f"{type(error).__name__}: {error}")
        self.close()

    @abstractmethod
    def _agree(self, name: str, nbytes: int, shared: bool) -> None:
        """TransportError on every rank unless all ask for the same arena and can have it."""

    @abstractmethod
    def _create(self, name: str, nbytes: int, shared: bool) -> Arena:
        """Make and hand over the memory of a new arena."""

    @abstractmethod
    def _forget(self, name: str) -> None:
        """Let go of whatever else holds the memory of a released arena."""

    @abstractmethod
    def _seal(self) -> None:
        """Agree that there are no more arenas."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Let go of peers and control pages."""
