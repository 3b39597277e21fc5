"""How long a schedule takes, by a simple model of links."""

import heapq
from collections import deque
from dataclasses import dataclass

from sshsdp_zerosm.errors import DeadlockError
from sshsdp_zerosm.ops import Fence, Op, Pull, Put, Reduce, Signal, Wait
from sshsdp_zerosm.region import Region
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
        ValueError: a schedule of another world.
        DeadlockError: some rank waits for a signal that never comes.
    """
    if schedule.world != topology.world:
        raise ValueError(f"expected a topology of {schedule.world} ranks, got {topology}")
    model = _Model(schedule, topology, rates)
    model.run()
    return Simulation(tuple(model.now), tuple(model.moved))


class _Model:
    """Ranks in the order of their clocks."""

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
        self._sending: list[list[tuple[Region, float]]] = [[] for _ in ranks]
        self._sent: dict[tuple[int, int], float] = {}  # (source, target) -> end of the last put
        self._signals: dict[tuple[int, str, int], list[float]] = {}
        self._waited: dict[tuple[int, str, int], int] = {}
        self._asleep: dict[tuple[int, str, int], bool] = {}
        self._heap = [(0.0, rank) for rank in ranks]

    def run(self) -> None:
        """Until nobody can go on."""
        while self._heap:
            _, rank = heapq.heappop(self._heap)
            if self._todo[rank] and self._step(rank, self._todo[rank][0]):
                self._todo[rank].popleft()
                heapq.heappush(self._heap, (self.now[rank], rank))
        waiting = [f"rank {rank}: {todo[0]}" for rank, todo in enumerate(self._todo) if todo]
        if waiting:
            raise DeadlockError("no rank can go on\n" + "\n".join(waiting))

    def _step(self, rank: int, op: Op) -> bool:
        """Do it; False if it has to wait for a signal that isn't sent yet."""
        rates = self._rates
        match op:
            case Pull() | Put():
                self._copy(rank, op)
            case Reduce():
                self.now[rank] += sum(source.nbytes for source in op.sources) / rates.reduce
            case Fence():
                ends = [end for region, end in self._sending[rank] if region.overlaps(op.source)]
                self.now[rank] = max([self.now[rank], *ends])
            case Signal():
                for peer in op.to:
                    self._signal(rank, op.channel, peer)
            case Wait():
                return self._wait(rank, op)
        moved = op_traffic(op, rank, self._topology)
        before = self.moved[rank]
        self.moved[rank] = Traffic(before.within + moved.within, before.between + moved.between)
        return True

    def _copy(self, rank: int, op: Pull | Put) -> None:
        source, target, nbytes = op.source.rank, op.target.rank, op.source.nbytes
        if source == target:
            self.now[rank] += nbytes / self._rates.within
        elif self._same_node(source, target):
            seconds = self._rates.within_latency + nbytes / self._rates.within
            self.now[rank] = self._transfer("within", source, target, self.now[rank], seconds)
        else:
            seconds = nbytes / self._rates.between
            end = self._transfer("between", source, target, self.now[rank], seconds)
            self._sending[rank].append((op.source, end))
            self._sent[source, target] = end

    def _transfer(self, kind: str, source: int, target: int, at: float, seconds: float) -> float:
        out, into = (f"{kind} out", source), (f"{kind} in", target)
        end = max(at, self._free.get(out, 0.0), self._free.get(into, 0.0)) + seconds
        self._free[out] = self._free[into] = end
        return end

    def _signal(self, rank: int, channel: str, peer: int) -> None:
        if self._same_node(rank, peer):
            arrival = self.now[rank] + self._rates.within_latency
        else:
            sent = max(self.now[rank], self._sent.get((rank, peer), 0.0))
            arrival = sent + self._rates.between_latency
        key = rank, channel, peer
        self._signals.setdefault(key, []).append(arrival)
        if self._asleep.pop(key, False):
            heapq.heappush(self._heap, (max(self.now[peer], arrival), peer))

    def _wait(self, rank: int, op: Wait) -> bool:
        key = op.source, op.channel, rank
        need = self._waited.get(key, 0) + 1 - op.credit
        arrivals = self._signals.get(key, [])
        if len(arrivals) < need:
            self._asleep[key] = True
            return False
        if need > 0:
            self.now[rank] = max(self.now[rank], arrivals[need - 1])
        self._waited[key] = need + op.credit
        return True

    def _same_node(self, one: int, other: int) -> bool:
        return self._topology.node_of(one) == self._topology.node_of(other)
