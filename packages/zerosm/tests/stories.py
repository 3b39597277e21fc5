"""Shared by the tests: a group of ranks on some nodes, and all algorithms that it can run."""

from dataclasses import dataclass

import torch

from sshsdp_zerosm import (
    Idle,
    Loopback,
    Publish,
    Region,
    Run,
    Schedule,
    Topology,
    Use,
    all_reduce_workspace,
    hierarchical_all_gather,
    hierarchical_all_reduce,
    hierarchical_reduce_scatter,
    reduce_scatter_workspace,
)

ALGORITHMS = ("gather", "scatter", "all_reduce")


def spread(numel, dtype, seed):
    """Values whose exponents span 2^-20 to 2^20: their sum shows every change of order."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-20, 21, (numel,), generator=generator)
    mantissas = torch.randn(numel, generator=generator, dtype=torch.float64)
    return (mantissas * 2.0**exponents).to(dtype)


def groups_of(topology):
    """Groups of a world: all, strided, in other orders, unbalanced over the nodes, one rank."""
    world = topology.world
    found = {
        tuple(range(world)),
        tuple(range(0, world, 2)),
        tuple(range(0, world, topology.ranks_per_node)),
        tuple(reversed(range(world))),
        tuple(range(1, world)) or (0,),
        tuple(range(0, world, 3)),
        tuple(rank for rank in range(world) if topology.local_rank(rank) <= topology.node_of(rank)),
        (world - 1,),
    }
    return sorted(found)


@dataclass(frozen=True)
class Story:
    """Memory: "shard", "output", "input", "sum", "buffer" and "space" (workspace) on every rank."""

    topology: Topology
    group: tuple[int, ...]
    counts: tuple[int, ...]  # elements per member
    dtype: torch.dtype = torch.float32  # of what is summed
    chunk_bytes: int = 64
    scale: float = 1.0
    aligned: int = 1

    accumulator = torch.float32

    @property
    def numel(self):
        return sum(self.counts)

    @property
    def nodes(self):
        """Places of the group by node, nodes in order of first appearance."""
        found = {}
        for place, rank in enumerate(self.group):
            found.setdefault(self.topology.node_of(rank), []).append(place)
        return list(found.values())

    @property
    def world(self):
        return self.topology.world

    def regions(self, arena, numels, dtype):
        return tuple(
            Region(arena, rank, 0, numel * dtype.itemsize)
            for rank, numel in zip(self.group, numels, strict=True)
        )

    def whole(self, arena, dtype):
        return self.regions(arena, [self.numel] * len(self.group), dtype)

    @property
    def shards(self):
        return self.regions("shard", self.counts, torch.float32)

    @property
    def sums(self):
        return self.regions("sum", self.counts, self.accumulator)

    @property
    def common(self):
        return {
            "group": self.group,
            "topology": self.topology,
            "chunk_bytes": self.chunk_bytes,
        }

    @property
    def space_bytes(self):
        more = {"accumulator": self.accumulator, **self.common}
        return max(
            reduce_scatter_workspace(counts=self.counts, **more),
            all_reduce_workspace(numel=self.numel, chunk_align=self.aligned, **more),
        )

    @property
    def space(self):
        return tuple(Region("space", rank, 0, self.space_bytes) for rank in self.group)

    def gather(self, name="gather"):
        outputs = self.whole("output", torch.float32)
        return hierarchical_all_gather(name, shards=self.shards, outputs=outputs, **self.common)

    def scatter(self, name="scatter"):
        return hierarchical_reduce_scatter(
            name, inputs=self.whole("input", self.dtype), accumulators=self.sums,
            dtype=self.dtype, accumulator=self.accumulator, workspace=self.space, slot="slot",
            scale=self.scale, **self.common,
        )  # fmt: skip

    def all_reduce(self, name="all_reduce"):
        return hierarchical_all_reduce(
            name, buffers=self.whole("buffer", self.dtype), dtype=self.dtype,
            accumulator=self.accumulator, workspace=self.space, chunk_align=self.aligned,
            scale=self.scale, **self.common,
        )  # fmt: skip

    def schedule(self, algorithm):
        return getattr(self, algorithm)()

    def turn(self, algorithm, schedule, *, accumulate=False):
        """One turn with everything that owners may do as early as they may."""
        if algorithm == "gather":
            outputs = self.whole("output", torch.float32)
            scenes = [
                Use(writes=self.shards), Publish(), Run(schedule, "gather"),
                Use(reads=outputs), Use(writes=outputs),
            ]  # fmt: skip
            return scenes if len(self.nodes) > 1 else [*scenes, Idle()]
        if algorithm == "scatter":
            return [
                Run(schedule, "acquire"), Use(writes=self.whole("input", self.dtype)),
                Run(schedule, "ready"), Run(schedule, "reduce", accumulate), Use(reads=self.sums),
            ]  # fmt: skip
        buffers = self.whole("buffer", self.dtype)
        return [Use(writes=buffers), Run(schedule, "reduce"), Use(reads=buffers)]

    def scenes(self, algorithms=ALGORITHMS, schedules=None):
        """Three turns of each back to back, then one of each again, sharing slot and workspace."""
        schedules = schedules or {name: self.schedule(name) for name in algorithms}
        names = [name for name in algorithms for _ in range(3)] + list(algorithms)
        return [
            scene
            for turn, name in enumerate(names)
            for scene in self.turn(name, schedules[name], accumulate=name in names[:turn])
        ]

    def play(self, algorithm, *, turns=2, seed=None, schedule=None):
        """What each member has after some turns on a Loopback, and what it must have."""
        loopback = Loopback(self.world, topology=self.topology)
        sizes = dict.fromkeys(("shard", "output", "input", "sum", "buffer"), 4 * self.numel)
        arenas = [
            {
                name: transport.arena(name, nbytes)
                for name, nbytes in (sizes | {"space": self.space_bytes}).items()
            }
            for transport in loopback.transports
        ]
        for memory in arenas:
            for arena in memory.values():
                arena.tensor().fill_(0xFF)  # NaN: nothing may depend on what was there

        def tensor(region, dtype):
            return arenas[region.rank][region.arena].tensor()[: region.nbytes].view(dtype)

        schedule = schedule or self.schedule(algorithm)
        programs = [transport.compile(schedule) for transport in loopback.transports]
        source, result, kind = {
            "gather": (self.shards, self.whole("output", torch.float32), torch.float32),
            "scatter": (self.whole("input", self.dtype), self.sums, self.dtype),
            "all_reduce": (*[self.whole("buffer", self.dtype)] * 2, self.dtype),
        }[algorithm]
        expected = None
        for turn in range(turns):
            values = [
                spread(region.numel(kind), kind, 100 * turn + place)
                for place, region in enumerate(source)
            ]
            for region, value in zip(source, values, strict=True):
                tensor(region, kind).copy_(value)
            for phase in schedule.phases:
                loopback.run(programs, phase, accumulate=turn > 0, seed=seed)
            expected = self._next(algorithm, values, expected)
        stored = self.accumulator if algorithm == "scatter" else kind
        return [tensor(region, stored) for region in result], expected

    def _next(self, algorithm, values, before):
        if algorithm == "gather":
            return [torch.cat(values)] * len(self.group)
        total = two_level(values, self.nodes) * self.scale
        if algorithm == "all_reduce":
            return [total.to(self.dtype)] * len(self.group)
        chunks = total.split(self.counts)
        return [
            chunk if before is None else before[place] + chunk for place, chunk in enumerate(chunks)
        ]


def two_level(parts, nodes, accumulator=torch.float32):
    """The reference: sums within nodes in group order, then over nodes."""
    partials = []
    for places in nodes:
        partial = parts[places[0]].to(accumulator)
        for place in places[1:]:
            partial = partial + parts[place].to(accumulator)
        partials.append(partial)
    total = partials[0]
    for partial in partials[1:]:
        total = total + partial
    return total


def changed(schedule, change):
    """The schedule with ``change(phase, rank, operations)`` in place of every rank's operations."""
    phases = {
        phase: tuple(
            tuple(change(phase, rank, schedule.ops(phase, rank))) for rank in range(schedule.world)
        )
        for phase in schedule.phases
    }
    return Schedule(
        schedule.name, schedule.world, phases, schedule.channels, schedule.least_between
    )
