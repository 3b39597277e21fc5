"""The running example of the SS-HSDP paper: four heads, four ranks, one head that is cut.

Four processes act as two nodes of two ranks. Weights and sums of gradients are cut in two within a
node, the update in four over all ranks. The query projection is one matrix in forward and backward
and four heads to Muon. Its first head lies across the shards of ranks 2 and 1, so its u travels to
rank 2 and its v back, and nothing else moves in the update.

    python running_example.py
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from multiprocessing import get_context
from typing import Any

import torch
from torch import nn
from torch.distributed import FileStore
from torch.nn import functional

from sshsdp_fsdp_runtime import Cast, Sharding, Update, fully_shard
from sshsdp_shardchain import Degrees, Layout, Level
from sshsdp_updates import Muon, Operands, Scalars, Stage, StageKind, UpdatePlan, heads
from sshsdp_zerosm import Counters, Topology, Transport, connect

TOPOLOGY = Topology(nodes=2, ranks_per_node=2)
DEGREES = Degrees(zero3=2, zero2=2, zero1=4)
HEADS, SIZE, WIDTH, CONTEXT, HIDDEN = 4, 8, 32, 48, 28
STEPS, MICROBATCHES, TOKENS = 3, 2, 6


class Block(nn.Module):
    """Four query heads that share one key and one value, then a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.key_value = nn.Linear(CONTEXT, 2 * SIZE, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        query = self.query(x).unflatten(-1, (HEADS, SIZE)).transpose(0, 1)
        key, value = self.key_value(context).chunk(2, dim=-1)
        scores = torch.softmax(query @ key.T / SIZE**0.5, dim=-1)
        x = x + (scores @ value).transpose(0, 1).flatten(1)
        return x + self.down(functional.gelu(self.up(x)))


def fresh_model() -> Block:
    """The same initial weights on every rank."""
    torch.manual_seed(0)
    return Block()


def batch(rank: int, step: int, microbatch: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Input, context and target, other ones on every rank."""
    random = torch.Generator().manual_seed(100 * step + 10 * microbatch + rank)
    return [torch.randn(TOKENS, n, generator=random).to(dtype) for n in (WIDTH, CONTEXT, WIDTH)]


class Journal:
    """What one rank works on in each stage, and the bytes that its transport counts meanwhile."""

    def __init__(self, counters: Counters) -> None:
        self.stages: dict[str, dict[str, Any]] = {}
        self._counters = counters
        self.begin()

    def begin(self) -> None:
        """Forget everything before."""
        self.stages.clear()
        self._stage = ""
        self._seen = replace(self._counters)

    def enter(self, stage: str) -> None:
        """What has moved since the last call belongs to the stage of then."""
        now = replace(self._counters)
        if self._stage:
            booked = self.stages[self._stage]
            booked["within"] += now.within_bytes - self._seen.within_bytes
            booked["between"] += now.between_bytes - self._seen.between_bytes
        self._seen, self._stage = now, stage
        self.stages.setdefault(stage, {"works on": [], "within": 0, "between": 0})

    def work(self, what: str) -> None:
        """Note what the stage works on here."""
        self.stages[self._stage]["works on"].append(what)


LABELS = {
    "momentum": "f0, momentum: g, m -> u",
    "orthogonalize": "f1, Newton-Schulz: u -> v",
    "apply": "f2: v -> main w",
}


def watched(rule: Muon, journal: Journal) -> Muon:
    """The same rule, whose stages write into a journal what they are handed."""

    def watch(stage: Stage, operands: Operands, scalars: Scalars) -> None:
        journal.enter(LABELS[stage.name])
        parts = operands[stage.operands[-1].field]
        if stage.kind is StageKind.UNITS:
            journal.work(", ".join(f"{len(p)} of {p.shape[1]}x{p.shape[2]}" for p in parts))
        else:
            journal.work(str(sum(part.numel() for part in parts)))
        stage.function(operands, scalars)
        if stage.name == "apply":
            journal.enter("G and outer gather: main w -> w at zero1 -> w at zero3")

    class Watched(Muon):
        def stages(self) -> tuple[Stage, ...]:
            return tuple(replace(s, function=partial(watch, s)) for s in super().stages())

    return Watched(**rule.hyperparameters())


def shard(transport: Transport, journal: Journal, dtype: torch.dtype = torch.bfloat16) -> Any:
    """The sharded model.

    Args:
        transport: connects the ranks.
        journal: told of every stage of the update.
        dtype: of weights in forward and backward, and of u; main weights are FP32 or wider.
    """
    muon = watched(Muon(lr=0.02, weight_decay=0.1, ns_dtype=dtype), journal)
    return fully_shard(
        fresh_model().to(torch.promote_types(dtype, torch.float32)),
        sharding=[Sharding("**", DEGREES)],
        formats=[Cast("**", dtype)],
        updates=[
            Update("query.weight", muon, unit=heads(SIZE)),
            Update("key_value.weight", muon, unit=heads(SIZE)),
            Update("**", muon),  # a matrix at once
        ],
        transport=transport,
        form="private",  # every rank has its own memory, as GPUs have
    )


def train(model: Any, journal: Journal, rank: int, dtype: torch.dtype = torch.bfloat16) -> None:
    """Take a few steps on this rank."""
    for step in range(STEPS):
        journal.begin()
        for microbatch in range(MICROBATCHES):
            x, context, target = batch(rank, step, microbatch, dtype)
            journal.enter(f"microbatch {microbatch}, forward: w at zero3 -> full w'")
            loss = functional.mse_loss(model(x, context), target) / MICROBATCHES
            journal.enter(f"microbatch {microbatch}, backward: full g' -> sums at zero2")
            loss.backward()
        journal.enter("outer reduction: sums at zero2 -> g at zero1")
        model.finalize_gradients()
        journal.enter("step")
        model.optimizer.step()
        journal.enter("end")
        model.optimizer.zero_grad()


def describe_list(layout: Layout) -> Iterator[str]:
    """Say what lies where in the flattened list."""
    owners = " ".join(map(str, layout.chain.owners(Level.ZERO1)))
    yield f"{layout.numel} elements; their quarters, in order, are updated by ranks {owners}"
    for placed in layout.placements:
        yield f"  {placed.name:18}{placed.offset}..{placed.offset + placed.numel}"


def describe_heads(layout: Layout) -> Iterator[str]:
    """Say which ranks hold which elements of every head, level by level, in buffer order."""
    yield "who holds which elements of the heads of query.weight"
    size = SIZE * WIDTH
    for head in range(HEADS):
        for name, level in (("zero3, zero2", Level.ZERO2), ("zero1", Level.ZERO1)):
            held: dict[tuple[int, int], list[str]] = {}
            for rank in range(TOPOLOGY.world):
                piece = layout.fragment("query.weight", level, rank)
                start, stop = max(piece.start - head * size, 0), min(piece.stop - head * size, size)
                if start < stop:
                    held.setdefault((start, stop), []).append(str(rank))
            holders = (f"{a}..{b} on {' '.join(ranks)}" for (a, b), ranks in sorted(held.items()))
            yield f"  head {head}  {name:14}{', '.join(holders)}"


def describe_cuts(plan: UpdatePlan) -> Iterator[str]:
    """Say who works on the units that are cut, and what travels for it."""
    yield "units that several ranks hold"
    for unit in (unit for unit in plan.units if unit.cut):
        item, executor = plan.lists[unit.list], unit.executor
        holders = " ".join(str(part.rank) for part in unit.parts)
        name = item.members[unit.member].name
        yield f"  unit {unit.index} of {name}, on {holders}: worked on by {executor}"
        for part in (part for part in unit.parts if part.rank != executor):
            for field in plan.rule.temporaries():
                ends = (part.rank, executor) if field.name == "u" else (executor, part.rank)
                what = f"{part.numel} elements of {field.name} in {field.dtype or item.dtype}"
                yield f"    {what}: from rank {ends[0]} to rank {ends[1]}"


def describe_stages(journals: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Say what every rank worked on and moved, stage by stage."""
    for stage in journals[0]:
        booked = [journal[stage] for journal in journals]
        calls = list(zip_longest(*(entry["works on"] for entry in booked), fillvalue="-"))
        rows = [("works on" if not i else "then on", call) for i, call in enumerate(calls)]
        for kind, title in (("within", "bytes within node"), ("between", "bytes to other node")):
            cells = [entry[kind] for entry in booked]
            rows += [(title, cells)] if any(cells) else []
        if rows:
            yield stage
        for title, cells in rows:
            yield f"  {title:20}" + "".join(f"{cell:>14}" for cell in cells)


def main(rank: int, path: str) -> None:
    """What each process runs; rank 0 prints."""
    torch.set_num_threads(1)
    store = FileStore(path, TOPOLOGY.world)
    with connect(rank, TOPOLOGY.world, store, timeout=60, topology=TOPOLOGY) as transport:
        journal = Journal(transport.counters)
        model = shard(transport, journal)
        train(model, journal, rank)
        journals = [json.loads(j) for j in transport.exchange(json.dumps(journal.stages).encode())]
        if rank == 0:
            layout, work = model.plan.atoms[0].layout, model.plan.update_plans[0]
            print(*describe_list(layout), *describe_heads(layout), *describe_cuts(work), sep="\n")
            print(f"\n{'the last step, by rank':22}" + "".join(f"{r:>14}" for r in range(4)))
            print(*describe_stages(journals), sep="\n")
        model.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        start = get_context("fork").Process
        ranks = [start(target=main, args=(r, f"{folder}/store")) for r in range(TOPOLOGY.world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        sys.exit(any(process.exitcode for process in ranks))
