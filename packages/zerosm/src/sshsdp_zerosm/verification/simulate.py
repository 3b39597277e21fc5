"""How long a schedule takes, by a simple model of links."""

import heapq
from collections import deque
from dataclasses import dataclass, field

from sshsdp_zerosm.errors import DeadlockError
from sshsdp_zerosm.ops import Fence, Op, Pull, Put, Reduce, Signal, Wait
from sshsdp_zerosm.schedule import Schedule
from sshsdp_zerosm.topology import Topology
from sshsdp_zerosm.verification.traffic import Traffic, op_traffic


@dataclass(frozen=True, slots=True)
class Rates:
    """What the links and the processors do.

    Every rank has one inbound and one outbound link within its node, and one of each between nodes;
    a link serves one transfer at a time.

    Attributes:
        within: bytes per second of a link within a node, and of copies in own memory.
        between: bytes per second of a link between nodes.
        reduce: source bytes per second that a rank sums.
        within_latency: seconds of a transfer or a signal within a node.
        between_latency: seconds until what was put or signalled is seen on another node.
    """

    within: float
    between: float
    reduce: float
    within_latency: float = 0.0
    between_latency: float = 0.0

    def __post_init__(self) -> None:
        if min(self.within, self.between, self.reduce) <= 0:
            raise ValueError(f"expected rates > 0, got {self}")
        if min(self.within_latency, self.between_latency) < 0:
            raise ValueError(f"expected latencies >= 0, got {self}")


@dataclass(frozen=True, slots=True)
class Simulation:
    """What became of all ranks.

    Attributes:
        seconds: when each rank was done.
        moved: what each rank moved.
    """

    seconds: tuple[float, ...]
    moved: tuple[Traffic, ...]


def simulate(schedule: Schedule, topology: Topology, rates: Rates) -> Simulation:
    """Run every phase once, in order, all ranks starting at the same time.

    Puts between nodes are under way while their rank goes on; all else takes its rank's time.
    Generations are taken as published.

    Args:
        schedule: of the topology's world.
        topology: which ranks share a node.
        rates: of links and processors.

    Raises:
        ValueError: a schedule of another world, or one that reads memory of another node.
        DeadlockError: some rank waits for a signal that never comes.
    """
    if schedule.world != topology.world:
        raise ValueError(f"expected a topology of {schedule.world} ranks, got {topology}")
    model = _Model(schedule, topology, rates)
    model.run()
    return Simulation(tuple(model.now), tuple(model.moved))


@dataclass(eq=False, slots=True)
class _Transfer:
    """A put to another node.

    Attributes:
        put: what is copied.
        end: when it is there; None while it queues.
        signals: channels whose signals follow it.
    """

    put: Put
    end: float | None = None
    signals: list[str] = field(default_factory=list)


class _Model:
    """Ranks, and their links to other nodes, in the order of their clocks."""

    def __init__(self, schedule: Schedule, topology: Topology, rates: Rates) -> None:
        ranks = range(schedule.world)
        self._topology = topology
        self._rates = rates
        self._todo: list[deque[Op]] = [
            deque(op for phase in schedule.phases for op in schedule.ops(phase, rank))
            for rank in ranks
        ]
        self.now = [0.0 for _ in ranks]
        self.moved = [Traffic(0, 0) for _ in ranks]
        self._free: dict[tuple[str, int], float] = {}  # link -> when its last transfer ends
        self._queues: list[deque[_Transfer]] = [deque() for _ in ranks]
        self._sent: list[list[_Transfer]] = [[] for _ in ranks]
        self._signals: dict[tuple[int, str, int], list[float]] = {}
        self._waited: dict[tuple[int, str, int], int] = {}
        self._asleep: set[tuple[int, str, int]] = set()
        self._fencing: set[int] = set()
        # Ordered by time, then links (0) before ranks (1).
        self._heap = [(0.0, 1, rank) for rank in ranks]

    def run(self) -> None:
        """Until nobody can go on."""
        while self._heap:
            time, is_rank, rank = heapq.heappop(self._heap)
            if not is_rank:
                self._send(time, rank)
            elif self._todo[rank] and self._step(rank, self._todo[rank][0]):
                self._todo[rank].popleft()
                self._wake(rank)
        waiting = [f"rank {rank}: {todo[0]}" for rank, todo in enumerate(self._todo) if todo]
        if waiting:
            raise DeadlockError("no rank can go on\n" + "\n".join(waiting))

    def _wake(self, rank: int) -> None:
        heapq.heappush(self._heap, (self.now[rank], 1, rank))

    def _step(self, rank: int, op: Op) -> bool:
        """Do it; False if it has to wait, and who it waits for will wake the rank."""
        match op:
            case Pull() | Put():
                if not self._copy(rank, op):
                    return False
            case Reduce():
                nbytes = sum(source.nbytes for source in op.sources)
                self.now[rank] += nbytes / self._rates.reduce
            case Fence():
                return self._fence(rank, op)
            case Signal():
                for peer in op.to:
                    self._signal(rank, op.channel, peer)
            case Wait():
                return self._wait(rank, op)
        self.moved[rank] = Traffic.sum((self.moved[rank], op_traffic(op, rank, self._topology)))
        return True

    def _copy(self, rank: int, op: Pull | Put) -> bool:
        source, target, nbytes = op.source.rank, op.target.rank, op.source.nbytes
        if source == target:
            self.now[rank] += nbytes / self._rates.within
        elif self._same_node(source, target):
            links = ("out", source), ("in", target)
            start = max(self.now[rank], *(self._free.get(link, 0.0) for link in links))
            if start > self.now[rank]:
                self.now[rank] = start
                self._wake(rank)
                return False
            self.now[rank] += self._rates.within_latency + nbytes / self._rates.within
            self._free.update(dict.fromkeys(links, self.now[rank]))
        elif isinstance(op, Put):
            transfer = _Transfer(op)
            self._sent[rank].append(transfer)
            self._queues[rank].append(transfer)
            if len(self._queues[rank]) == 1:
                start = max(self.now[rank], self._free.get(("node out", rank), 0.0))
                heapq.heappush(self._heap, (start, 0, rank))
        else:
            raise ValueError(f"expected memory of the own node, got {op}: its owner has to put it")
        return True

    def _send(self, time: float, rank: int) -> None:
        """Start the next transfer to another node, unless its target is busy."""
        transfer = self._queues[rank][0]
        target = transfer.put.target.rank
        start = self._free.get(("node in", target), 0.0)
        if start > time:
            heapq.heappush(self._heap, (start, 0, rank))
            return
        end = time + transfer.put.source.nbytes / self._rates.between
        self._free["node in", target] = self._free["node out", rank] = transfer.end = end
        self._queues[rank].popleft()
        if self._queues[rank]:
            heapq.heappush(self._heap, (end, 0, rank))
        for channel in transfer.signals:
            self._deliver(rank, channel, target, end + self._rates.between_latency)
        if rank in self._fencing:
            self._fencing.discard(rank)
            self._wake(rank)

    def _fence(self, rank: int, op: Fence) -> bool:
        ends = [
            transfer.end for transfer in self._sent[rank] if transfer.put.source.overlaps(op.source)
        ]
        if None in ends:
            self._fencing.add(rank)
            return False
        self.now[rank] = max([self.now[rank], *(end for end in ends if end is not None)])
        return True

    def _signal(self, rank: int, channel: str, peer: int) -> None:
        if self._same_node(rank, peer):
            self._deliver(rank, channel, peer, self.now[rank] + self._rates.within_latency)
            return
        puts = [transfer for transfer in self._sent[rank] if transfer.put.target.rank == peer]
        if puts and puts[-1].end is None:
            puts[-1].signals.append(channel)
        else:
            sent = max([self.now[rank], *(put.end or 0.0 for put in puts[-1:])])
            self._deliver(rank, channel, peer, sent + self._rates.between_latency)

    def _deliver(self, rank: int, channel: str, peer: int, arrival: float) -> None:
        key = rank, channel, peer
        self._signals.setdefault(key, []).append(arrival)
        if key in self._asleep:
            self._asleep.discard(key)
            self._wake(peer)

    def _wait(self, rank: int, op: Wait) -> bool:
        key = op.source, op.channel, rank
        count = self._waited.get(key, 0) + 1
        arrivals = self._signals.get(key, [])
        if len(arrivals) < count - op.credit:
            self._asleep.add(key)
            return False
        if count > op.credit:
            self.now[rank] = max(self.now[rank], arrivals[count - op.credit - 1])
        self._waited[key] = count
        return True

    def _same_node(self, one: int, other: int) -> bool:
        return self._topology.node_of(one) == self._topology.node_of(other)
