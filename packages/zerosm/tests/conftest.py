"""Shared by the tests: layouts of ranks; one algorithm on one group, played and by plain torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from testing.ranks import run_ranks

import sshsdp_zerosm as zerosm
from sshsdp_zerosm import Region, Topology


@dataclass(frozen=True)
class Layout:
    """Nodes and ranks per node: 1xN is shared memory, Nx1 a process group, the rest composite."""

    topology: Topology

    @property
    def world(self):
        return self.topology.world

    def connect(self, rank, timeout=30, **kwargs):
        return zerosm.connect(
            rank.rank, self.world, rank.store, timeout=timeout, topology=self.topology, **kwargs
        )

    def run(self, function, *args, **kwargs):
        """The ranks' answers of ``function(Rank)``."""
        return run_ranks(function, self.world, *args, **kwargs)

    def run_connected(self, function, **kwargs):
        """The ranks' answers of ``function(transport)``."""

        def rank_main(rank):
            with self.connect(rank) as transport:
                return function(transport)

        return self.run(rank_main, **kwargs)


@pytest.fixture(params=["1x3", "3x1", "2x2"])
def layout(request):
    """Every kind of transport; a test that needs others names them."""
    nodes, ranks_per_node = map(int, request.param.split("x"))
    return Layout(Topology(nodes, ranks_per_node))


def spread(numel, dtype, seed):
    """Values whose exponents span 2^-20 to 2^20: their sum shows every change of order."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-20, 21, (numel,), generator=generator)
    mantissas = torch.randn(numel, generator=generator, dtype=torch.float64)
    return (mantissas * 2.0**exponents).to(dtype)


@dataclass(frozen=True)
class Case:
    """An algorithm with its memory: on every rank arenas for input, output and workspace."""

    algorithm: str
    world: int
    group: tuple[int, ...]
    counts: tuple[int, ...]  # elements per member
    dtype: torch.dtype = torch.float32
    scale: float = 1.0
    rounds: int = 2
    offset: int = field(default=0)  # bytes before each region
    nodes: int = 1
    chunk_bytes: int = 1 << 16

    @property
    def topology(self):
        return Topology(self.nodes, self.world // self.nodes)

    @property
    def kind(self):
        """The algorithm without its way of going between nodes."""
        return {
            "hierarchical_all_gather": "pull",
            "hierarchical_reduce_scatter": "reduce_scatter",
            "hierarchical_all_reduce": "all_reduce",
        }.get(self.algorithm, self.algorithm)

    @property
    def accumulator(self):
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def regions(self, arena, numels: Sequence[int], dtype):
        return [
            Region(arena, rank, self.offset, numel * dtype.itemsize)
            for rank, numel in zip(self.group, numels, strict=True)
        ]

    def whole(self, arena, dtype):
        return self.regions(arena, [sum(self.counts)] * len(self.group), dtype)

    def schedule(self, name=""):
        """The schedule over the arenas of that name; see `arenas`."""
        common = {"group": self.group, "world": self.world}
        kind = {"dtype": self.dtype, "accumulator": self.accumulator}
        if self.algorithm.startswith("hierarchical"):
            common = {
                "group": self.group, "topology": self.topology, "chunk_bytes": self.chunk_bytes
            }  # fmt: skip
            if self.kind != "pull":
                space = [self.workspace_bytes] * len(self.group)
                kind["workspace"] = self.regions(f"{name}work", space, torch.uint8)
        shards = self.regions(f"{name}in", self.counts, self.dtype)
        inputs = self.whole(f"{name}in", self.dtype)
        outputs = self.whole(f"{name}out", self.dtype)
        match self.kind:
            case "pull" | "push":
                gathers = {"pull": "all_gather_pull", "push": "all_gather_push"}
                build = getattr(zerosm, gathers.get(self.algorithm, self.algorithm))
                return build(f"{name}g", shards=shards, outputs=outputs, **common)
            case "reduce_scatter":
                sums = self.regions(f"{name}out", self.counts, self.accumulator)
                return getattr(zerosm, self.algorithm)(
                    f"{name}r", inputs=inputs, accumulators=sums, slot=f"{name}s",
                    scale=self.scale, **kind, **common,
                )  # fmt: skip
            case "all_reduce":
                return getattr(zerosm, self.algorithm)(
                    f"{name}a", buffers=outputs, chunk_align=3, **kind, **common
                )

    @property
    def workspace_bytes(self):
        common = {
            "accumulator": self.accumulator, "group": self.group, "topology": self.topology,
            "chunk_bytes": self.chunk_bytes,
        }  # fmt: skip
        if self.algorithm == "hierarchical_reduce_scatter":
            return zerosm.reduce_scatter_workspace(counts=self.counts, **common)
        if self.algorithm == "hierarchical_all_reduce":
            return zerosm.all_reduce_workspace(numel=sum(self.counts), chunk_align=3, **common)
        return 0

    @property
    def phases(self):
        return {
            "pull": ["gather"],
            "push": ["acquire", "fill", "gather", "release"],
            "reduce_scatter": ["acquire", "fill", "ready", "reduce"],
            "all_reduce": ["fill", "reduce"],
        }[self.kind]

    @property
    def nbytes(self):
        return self.offset + sum(self.counts) * 8

    def accumulates(self, round_):
        return self.kind == "reduce_scatter" and round_ > 0

    def payload(self, rank, round_):
        """What a member contributes: its shard, or its whole input."""
        numel = sum(self.counts)
        if self.kind in ("pull", "push"):
            numel = self.counts[self.group.index(rank)]
        return spread(numel, self.dtype, 1000 * round_ + rank)

    def write(self, transport, arenas, round_):
        if transport.rank not in self.group:
            return
        values = self.payload(transport.rank, round_)
        arena = arenas["out" if self.kind == "all_reduce" else "in"]
        memory = arena.tensor()[self.offset :][: values.nbytes]
        memory.view(self.dtype).copy_(values)

    def result(self, transport, arenas):
        """What the rank got, or None if it is no member."""
        if transport.rank not in self.group:
            return None
        numel, dtype = sum(self.counts), self.dtype
        if self.kind == "reduce_scatter":
            numel, dtype = self.counts[self.group.index(transport.rank)], self.accumulator
        memory = arenas["out"].tensor()[self.offset :][: numel * dtype.itemsize]
        return memory.view(dtype).clone()

    def expected(self, rank):
        """The same by plain torch, in group order, or None."""
        if rank not in self.group:
            return None
        last = [self.payload(member, self.rounds - 1) for member in self.group]
        if self.kind in ("pull", "push"):
            return torch.cat(last)
        if self.kind == "all_reduce":
            return self._sum(last).to(self.dtype)
        start = sum(self.counts[: self.group.index(rank)])
        piece = slice(start, start + self.counts[self.group.index(rank)])
        total = None
        for round_ in range(self.rounds):  # the first overwrites, the later ones accumulate
            parts = [self.payload(member, round_)[piece] for member in self.group]
            scaled = self._sum(parts) * self.scale
            total = scaled if total is None else total + scaled
        return total

    def _sum(self, parts):
        """Per node in group order, then over the nodes in the order in which they appear."""
        partials = {}
        for rank, part in zip(self.group, parts, strict=True):
            node, value = self.topology.node_of(rank), part.to(self.accumulator)
            partials[node] = partials[node] + value if node in partials else value
        first, *rest = partials.values()
        return sum(rest, first)

    def arenas(self, transport, name=""):
        sizes = {"in": self.nbytes, "out": self.nbytes, "work": self.offset + self.workspace_bytes}
        return {what: transport.arena(name + what, size) for what, size in sizes.items()}


def _play_loopback(case, seed=None):
    """Every rank's result and counters, from a Loopback with a seeded interleaving."""
    loopback = zerosm.Loopback(case.world, topology=case.topology)
    arenas = [case.arenas(transport) for transport in loopback.transports]
    programs = [transport.compile(case.schedule()) for transport in loopback.transports]
    pairs = list(zip(loopback.transports, arenas, strict=True))
    for round_ in range(case.rounds):
        if case.kind == "pull":
            for transport, memory in pairs:
                case.write(transport, memory, round_)
                transport.publish()
        for phase in case.phases:
            if phase == "fill":
                for transport, memory in pairs:
                    case.write(transport, memory, round_)
            else:
                loopback.run(programs, phase, accumulate=case.accumulates(round_), seed=seed)
    counters = [transport.counters for transport in loopback.transports]
    return [case.result(transport, memory) for transport, memory in pairs], counters


def _play(transport, case, pause=lambda: None, name=""):
    """One rank's result, from its own transport; `pause` is called between all calls."""
    memory = case.arenas(transport, name)
    program = transport.compile(case.schedule(name))
    for round_ in range(case.rounds):
        if case.kind == "pull":
            transport.idle()
            case.write(transport, memory, round_)
            transport.publish()
        for phase in case.phases:
            pause()
            if phase == "fill":
                case.write(transport, memory, round_)
            else:
                program.run(phase, accumulate=case.accumulates(round_))
    return case.result(transport, memory)


@pytest.fixture(scope="session")
def make_case():
    return Case


@pytest.fixture(scope="session")
def play_loopback():
    return _play_loopback


@pytest.fixture(scope="session")
def play():
    return _play


@pytest.fixture(scope="session")
def spread_values():
    return spread
