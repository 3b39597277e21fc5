"""One execution that stands for all: what is ordered by signals, and what is not."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from sshsdp_zerosm.ops import Fence, Put, Signal, Wait, WaitGeneration
from sshsdp_zerosm.region import Region
from sshsdp_zerosm.topology import Topology
from sshsdp_zerosm.verification.memory import Access, Clock, Memory
from sshsdp_zerosm.verification.story import Event, Idle, Met, Publish, Scene, events_of


class _Rank:
    """One rank's position and what it knows of the others."""

    def __init__(self, rank: int, ranks: int, scenes: Sequence[Scene]) -> None:
        self.rank = rank
        self.events = deque(events_of(scenes, rank))
        self.clock: Clock = np.zeros(ranks, dtype=np.int64)
        self.waited: dict[tuple[int, str], int] = {}  # waits per channel of a source
        self.published: list[Clock] = []
        self.idled: list[Clock] = []
        self.unfenced: list[tuple[Region, Access]] = []  # puts, with what they read

    def learn(self, clock: Clock) -> None:
        """What was over at `clock` is over."""
        np.maximum(self.clock, clock, out=self.clock)


class _Counter:
    """A channel of one owner: what each signal brings to whoever waits for it."""

    def __init__(self, to: frozenset[int]) -> None:
        self.to = to
        self.brings: list[tuple[Clock, dict[int, int]]] = []  # clock, puts before it per receiver


class Trace:
    """Plays scenes.

    Counters only grow, and each wait is for one certain count. So whatever the timing, the same
    signal answers a wait, events are ordered in the same way, and ranks get equally far: one
    execution shows the order, and the deadlocks, of all of them.

    Args:
        scenes: what all ranks do.
        ranks: the ranks that play.
        topology: which ranks share a node.
        initial: memory with values from the start.
        shared: arenas of which the ranks of a node have one memory.
    """

    def __init__(
        self,
        scenes: Sequence[Scene],
        ranks: Sequence[int],
        topology: Topology,
        initial: Iterable[Region],
        shared: Collection[str],
    ) -> None:
        self._place = {rank: place for place, rank in enumerate(ranks)}
        self._ranks = {rank: _Rank(rank, len(ranks), scenes) for rank in ranks}
        self._counters: dict[tuple[int, str], _Counter] = {}
        self._puts: dict[tuple[int, int], list[Access]] = {}  # per source and target
        self._arrived: dict[tuple[int, int], int] = {}  # how many of them
        self.events = sum(len(rank.events) for rank in self._ranks.values())
        initial = tuple(initial)
        touched = (
            region
            for rank in self._ranks.values()
            for event in rank.events
            for region in (*event.reads, *event.writes)
        )
        self._memory = Memory((*touched, *initial), topology, shared)
        for region in initial:
            self._memory.define(region)

    def faults(self) -> Iterator[str]:
        """Play; races, undefined reads, useless writes, a deadlock, signals left over."""
        active = deque(rank for rank in self._ranks.values() if rank.events)
        stuck = 0
        while active and stuck < len(active):
            rank = active.popleft()
            stuck += 1
            while rank.events and self._missing(rank, rank.events[0]) is None:
                stuck = 0
                yield from self._play(rank, rank.events.popleft())
            if rank.events:
                active.append(rank)
        if active:
            lines = [
                f"rank {rank.rank} waits for {self._missing(rank, rank.events[0])}"
                for rank in sorted(active, key=lambda rank: rank.rank)
            ]
            yield "deadlock: " + "; ".join(lines[:8])
        else:
            yield from self._left_over()

    def _missing(self, rank: _Rank, event: Event) -> str | None:
        """Who is waited for, or None if the event can happen now."""
        match event.what:
            case Wait(source, channel, credit):
                need = rank.waited.get((source, channel), 0) + 1 - credit
                counter = self._counters.get((source, channel))
                seen = len(counter.brings) if counter and rank.rank in counter.to else 0
                if seen < need:
                    return f"rank {source}, channel {channel!r}: expected {need}, got {seen}"
            case WaitGeneration(source):
                need = len(rank.published)
                seen = len(self._ranks[source].published) if source in self._ranks else 0
                if seen < need:
                    return f"rank {source}, generation: expected {need}, got {seen}"
            case Met():
                need = len(rank.idled)
                late = [peer.rank for peer in self._ranks.values() if len(peer.idled) < need]
                if late:
                    return f"rank {late[0]}, barrier: expected {need}, got {need - 1}"
        return None

    def _play(self, rank: _Rank, event: Event) -> Iterator[str]:
        self._learn(rank, event)
        access = Access(event)
        for region in event.reads:
            yield from self._memory.read(region, access, rank.clock)
        for region in event.writes:
            yield from self._memory.write(region, access, rank.clock)
        place = self._place[rank.rank]
        rank.clock[place] += 1
        now = place, int(rank.clock[place])
        what = event.what
        if isinstance(what, Put) and what.target.rank != rank.rank:
            self._puts.setdefault((rank.rank, what.target.rank), []).append(access)
            rank.unfenced.append((what.source, access))
        else:
            access.ends.append(now)
        if isinstance(what, Signal):
            yield from self._send(rank, what)
        self._conclude(rank, event, now)

    def _learn(self, rank: _Rank, event: Event) -> None:
        """What happened before the event because of it."""
        match event.what:
            case Wait(source, channel, credit):
                key = source, channel
                rank.waited[key] = rank.waited.get(key, 0) + 1
                if rank.waited[key] > credit:
                    rank.learn(self._counters[key].brings[rank.waited[key] - credit - 1][0])
            case WaitGeneration(source):
                if rank.published:
                    rank.learn(self._ranks[source].published[len(rank.published) - 1])
            case Met():
                for peer in self._ranks.values():
                    rank.learn(peer.idled[len(rank.idled) - 1])

    def _conclude(self, rank: _Rank, event: Event, now: tuple[int, int]) -> None:
        """What is over, and known to others, by the event."""
        match event.what:
            case Fence():
                for put, access in rank.unfenced:
                    if put.overlaps(event.what.source):
                        access.ends.append(now)
                rank.unfenced = [
                    put for put in rank.unfenced if not put[0].overlaps(event.what.source)
                ]
            case Wait():
                self._arrive(rank, event.what, now)
            case Publish():
                rank.published.append(rank.clock.copy())
            case Idle():
                rank.idled.append(rank.clock.copy())

    def _send(self, rank: _Rank, signal: Signal) -> Iterator[str]:
        to = frozenset(signal.to)
        counter = self._counters.setdefault((rank.rank, signal.channel), _Counter(to))
        if counter.to != to:
            yield (
                f"rank {rank.rank} signals {signal.channel!r} to {sorted(to)} and to "
                f"{sorted(counter.to)}: a channel has one set of receivers"
            )
        puts = {peer: len(self._puts.get((rank.rank, peer), ())) for peer in to}
        counter.brings.append((rank.clock.copy(), puts))

    def _arrive(self, rank: _Rank, wait: Wait, now: tuple[int, int]) -> None:
        """The puts that the signal followed are over."""
        number = rank.waited[wait.source, wait.channel] - wait.credit
        if number < 1:
            return
        pair = wait.source, rank.rank
        puts = self._counters[wait.source, wait.channel].brings[number - 1][1]
        count, known = puts.get(rank.rank, 0), self._arrived.get(pair, 0)
        for access in self._puts.get(pair, [])[known:count]:
            access.ends.append(now)
        self._arrived[pair] = max(count, known)

    def _left_over(self) -> Iterator[str]:
        for (owner, channel), counter in self._counters.items():
            for peer in sorted(counter.to & self._ranks.keys()):
                waits = self._ranks[peer].waited.get((owner, channel), 0)
                if waits < len(counter.brings):
                    yield (
                        f"rank {owner} signals {channel!r} {len(counter.brings)} times, and rank "
                        f"{peer} waits for it {waits} times"
                    )
