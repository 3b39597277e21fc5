"""Shared by the tests: one algorithm on one group, played on a transport and by plain torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

import sshsdp_zerosm as zerosm
from sshsdp_zerosm import Region


def spread(numel, dtype, seed):
    """Values whose exponents span 2^-20 to 2^20: their sum shows every change of order."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-20, 21, (numel,), generator=generator)
    mantissas = torch.randn(numel, generator=generator, dtype=torch.float64)
    return (mantissas * 2.0**exponents).to(dtype)


@dataclass(frozen=True)
class Case:
    """An algorithm with its memory. Every rank has an "in" and an "out" arena of these bytes."""

    algorithm: str
    world: int
    group: tuple[int, ...]
    counts: tuple[int, ...]  # elements per member
    dtype: torch.dtype = torch.float32
    scale: float = 1.0
    rounds: int = 2
    offset: int = field(default=0)  # bytes before each region

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

    def schedule(self):
        common = {"group": self.group, "world": self.world}
        kind = {"dtype": self.dtype, "accumulator": self.accumulator}
        match self.algorithm:
            case "pull" | "push":
                build = getattr(zerosm, f"all_gather_{self.algorithm}")
                shards = self.regions("in", self.counts, self.dtype)
                return build("g", shards=shards, outputs=self.whole("out", self.dtype), **common)
            case "reduce_scatter":
                inputs = self.whole("in", self.dtype)
                sums = self.regions("out", self.counts, self.accumulator)
                return zerosm.reduce_scatter(
                    "r", inputs=inputs, accumulators=sums, slot="s", scale=self.scale,
                    **kind, **common,
                )  # fmt: skip
            case "all_reduce":
                buffers = self.whole("out", self.dtype)
                return zerosm.all_reduce("a", buffers=buffers, chunk_align=3, **kind, **common)

    @property
    def phases(self):
        return {
            "pull": ["gather"],
            "push": ["acquire", "fill", "gather", "release"],
            "reduce_scatter": ["acquire", "fill", "ready", "reduce"],
            "all_reduce": ["fill", "reduce"],
        }[self.algorithm]

    @property
    def nbytes(self):
        return self.offset + sum(self.counts) * 8

    def accumulates(self, round_):
        return self.algorithm == "reduce_scatter" and round_ > 0

    def payload(self, rank, round_):
        """What a member contributes: its shard, or its whole input."""
        numel = sum(self.counts)
        if self.algorithm in ("pull", "push"):
            numel = self.counts[self.group.index(rank)]
        return spread(numel, self.dtype, 1000 * round_ + rank)

    def write(self, transport, arenas, round_):
        if transport.rank not in self.group:
            return
        values = self.payload(transport.rank, round_)
        arena = arenas["out" if self.algorithm == "all_reduce" else "in"]
        memory = arena.tensor()[self.offset :][: values.nbytes]
        memory.view(self.dtype).copy_(values)

    def result(self, transport, arenas):
        """What the rank got, or None if it is no member."""
        if transport.rank not in self.group:
            return None
        numel, dtype = sum(self.counts), self.dtype
        if self.algorithm == "reduce_scatter":
            numel, dtype = self.counts[self.group.index(transport.rank)], self.accumulator
        memory = arenas["out"].tensor()[self.offset :][: numel * dtype.itemsize]
        return memory.view(dtype).clone()

    def expected(self, rank):
        """The same by plain torch, in group order, or None."""
        if rank not in self.group:
            return None
        last = [self.payload(member, self.rounds - 1) for member in self.group]
        if self.algorithm in ("pull", "push"):
            return torch.cat(last)
        if self.algorithm == "all_reduce":
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
        total = parts[0].to(self.accumulator)
        for part in parts[1:]:
            total = total + part.to(self.accumulator)
        return total

    def arenas(self, transport):
        return {name: transport.arena(name, self.nbytes) for name in ("in", "out")}


def _play_loopback(case, seed=None):
    """Every rank's result, from a Loopback with a seeded interleaving."""
    loopback = zerosm.Loopback(case.world)
    arenas = [case.arenas(transport) for transport in loopback.transports]
    programs = [transport.compile(case.schedule()) for transport in loopback.transports]
    pairs = list(zip(loopback.transports, arenas, strict=True))
    for round_ in range(case.rounds):
        if case.algorithm == "pull":
            for transport, memory in pairs:
                case.write(transport, memory, round_)
                transport.publish()
        for phase in case.phases:
            if phase == "fill":
                for transport, memory in pairs:
                    case.write(transport, memory, round_)
            else:
                loopback.run(programs, phase, accumulate=case.accumulates(round_), seed=seed)
    return [case.result(transport, memory) for transport, memory in pairs]


def _play(transport, case, pause=lambda: None):
    """One rank's result, from its own transport; `pause` is called between all calls."""
    memory = case.arenas(transport)
    program = transport.compile(case.schedule())
    for round_ in range(case.rounds):
        if case.algorithm == "pull":
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
