"""The plan's communication as zerosm schedules: one per group or atom and purpose."""

from collections.abc import Sequence
from dataclasses import dataclass

from sshsdp_fsdp_runtime.plan.atom import AtomPlan, WeightForm
from sshsdp_fsdp_runtime.plan.group import GroupPlan
from sshsdp_fsdp_runtime.plan.plan import Plan
from sshsdp_fsdp_runtime.plan.storage import Field, reduced_atoms
from sshsdp_shardchain import Level
from sshsdp_zerosm import (
    Op,
    Region,
    Schedule,
    Signal,
    Wait,
    WaitGeneration,
    all_gather_aliased,
    all_gather_pull,
    all_reduce,
    reduce_scatter,
)


class ScheduleBook:
    """Builds the schedules of a plan.

    Args:
        plan: what was decided.
        prefix: put before the names of arenas, so that several models share a transport.
    """

    def __init__(self, plan: Plan, prefix: str = "") -> None:
        self._plan = plan
        self._prefix = prefix
        self._world = plan.world

    def region(self, atom: AtomPlan, field: Field, rank: int) -> Region:
        """Where a field that the plan gives to `atom` lies on `rank`."""
        span = self._plan.storage.span(atom, field, rank)
        assert span is not None
        return Region(self._prefix + span.arena, rank, span.offset, span.nbytes)

    def gather(self, group: GroupPlan) -> Schedule | None:
        """Phase "gather": the group's full weights become readable; None if they always are."""
        parts = []
        for atom in group.atoms:
            for ranks in _groups(atom, Level.FULL, Level.ZERO3):
                if atom.form is WeightForm.ALIASED:
                    parts.append(all_gather_aliased(atom.name, group=ranks, world=self._world))
                elif atom.form is WeightForm.GATHERED:
                    parts.append(self._gather(atom, ranks, Field.SHARD, Field.WEIGHTS))
        return self._joined(f"{self._prefix}gather {group.label}", parts)

    def gather_shards(self) -> Schedule | None:
        """Phase "gather", once per update: w at ZeRO-1 becomes w at ZeRO-3; None if it is that."""
        parts = [
            self._gather(atom, ranks, Field.OWN, Field.SHARD)
            for atom in self._plan.atoms
            if atom.updates_apart
            for ranks in _groups(atom, Level.ZERO3, Level.ZERO1)
        ]
        return self._joined(f"{self._prefix}gather shards", parts)

    def reduce(self, group: GroupPlan) -> Schedule | None:
        """Phases "acquire", "ready" and "reduce" of the group's turn in its gradient slot."""
        slot = f"{self._prefix}slot{group.slot}"
        parts = [
            self._reduce(
                atom,
                ranks,
                (Field.GRADIENTS, Field.ACCUMULATOR),
                slot=slot,
                last=not atom.separate_main_grad and atom.replicas == 1,
            )
            for atom in reduced_atoms(group)
            for ranks in _groups(atom, Level.FULL, Level.ZERO2)
        ]
        if not parts:
            return None
        turns = [_Turn(slot, self._readers(group.slot, rank)) for rank in range(self._world)]
        return Schedule(
            f"{self._prefix}reduce {group.label}",
            self._world,
            {
                phase: tuple(
                    turn.around(phase, [part.ops(phase, rank) for part in parts])
                    for rank, turn in enumerate(turns)
                )
                for phase in parts[0].phases
            },
        )

    def reduce_sums(self, atom: AtomPlan) -> Schedule | None:
        """Same phases, once per step: sums at ZeRO-2 become main gradients at ZeRO-1."""
        if not atom.separate_main_grad:
            return None
        parts = [
            self._reduce(
                atom,
                ranks,
                (Field.ACCUMULATOR, Field.MAIN_GRAD),
                slot=f"{self._prefix}sums {atom.name}",
                last=atom.replicas == 1,
            )
            for ranks in _groups(atom, Level.ZERO2, Level.ZERO1)
        ]
        return self._joined(f"{self._prefix}reduce sums {atom.name}", parts)

    def sum_replicas(self, atom: AtomPlan) -> Schedule | None:
        """Phase "reduce": main gradients become the sum over replicas, equal on all of them."""
        if not atom.trainable or atom.replicas == 1:
            return None
        assert atom.main_dtype is not None
        parts = []
        for rank in range(atom.degrees.zero1):
            ranks = atom.layout.chain.replicas(Level.ZERO1, rank)
            parts.append(
                all_reduce(
                    f"{self._prefix}replicas {atom.name}",
                    buffers=[self.region(atom, Field.MAIN_GRAD, peer) for peer in ranks],
                    dtype=atom.main_dtype,
                    accumulator=atom.main_dtype,
                    group=ranks,
                    world=self._world,
                    chunk_align=64 // atom.main_dtype.itemsize,
                    scale=self._scale(last=True),
                )
            )
        return self._joined(f"{self._prefix}replicas {atom.name}", parts)

    def _readers(self, slot: int, rank: int) -> tuple[int, ...]:
        """The other ranks that read gradients from `rank`'s slot, whoever has its turn."""
        readers = dict.fromkeys(
            peer
            for group in self._plan.groups
            if group.slot == slot
            for atom in reduced_atoms(group)
            for peer in atom.layout.chain.members(Level.FULL, Level.ZERO2, rank)
        )
        return tuple(peer for peer in readers if peer != rank)

    def _gather(
        self, atom: AtomPlan, ranks: Sequence[int], source: Field, target: Field
    ) -> Schedule:
        return all_gather_pull(
            atom.name,
            shards=[self.region(atom, source, rank) for rank in ranks],
            outputs=[self.region(atom, target, rank) for rank in ranks],
            group=ranks,
            world=self._world,
        )

    def _reduce(
        self,
        atom: AtomPlan,
        ranks: Sequence[int],
        fields: tuple[Field, Field],
        *,
        slot: str,
        last: bool,
    ) -> Schedule:
        source, target = fields
        span = self._plan.storage.span(atom, source, ranks[0])
        assert span is not None
        assert atom.main_dtype is not None
        return reduce_scatter(
            atom.name,
            inputs=[self.region(atom, source, rank) for rank in ranks],
            accumulators=[self.region(atom, target, rank) for rank in ranks],
            dtype=span.dtype,
            accumulator=atom.main_dtype,
            group=ranks,
            world=self._world,
            slot=slot,
            scale=self._scale(last=last),
        )

    def _scale(self, *, last: bool) -> float:
        """Factor of a sum; averaging comes with the last of them."""
        return 1.0 / self._world if last and self._plan.options.average == "mean" else 1.0

    def _joined(self, name: str, parts: Sequence[Schedule]) -> Schedule | None:
        """One schedule that does what all `parts` do, meeting peers once instead of once each."""
        if not parts:
            return None
        phases = list(parts[0].phases)
        return Schedule(
            name,
            self._world,
            {
                phase: tuple(
                    _merge([part.ops(phase, rank) for part in parts]) for rank in range(self._world)
                )
                for phase in phases
            },
        )


@dataclass(frozen=True, slots=True)
class _Turn:
    """One use of a slot on one rank: taken when all readers are done, announced, given back.

    Atoms with different degrees have different readers, and groups with different atoms take
    turns. So every turn counts for all ranks that ever read the slot: the channels' counts stay in
    step, and the memory is free of the turn before whatever that was.
    """

    slot: str
    readers: tuple[int, ...]

    def around(self, phase: str, parts: Sequence[tuple[Op, ...]]) -> tuple[Op, ...]:
        """The work of all parts of a phase between the turn's own waits and signals."""
        ready, done = f"{self.slot}.ready", f"{self.slot}.done"
        work = tuple(op for part in parts for op in part if not self._synchronizes(op))
        match phase:
            case "acquire":
                return tuple(Wait(peer, done, credit=1) for peer in self.readers)
            case "ready":
                return (Signal(ready, self.readers),)
            case _:
                waits = tuple(Wait(peer, ready) for peer in self.readers)
                return (*waits, *work, Signal(done, self.readers))

    def _synchronizes(self, op: Op) -> bool:
        channels = (f"{self.slot}.ready", f"{self.slot}.done")
        return isinstance(op, Wait | Signal) and op.channel in channels


def _merge(parts: Sequence[tuple[Op, ...]]) -> tuple[Op, ...]:
    """Operations of parts that run as one: every wait and every signal once.

    Parts on one rank wait for the same peers, then work, then signal the same peers.
    """
    parts = [part for part in parts if part]
    if len(parts) < 2:
        return parts[0] if parts else ()
    ops = [op for part in parts for op in part]
    waits = [op for op in ops if isinstance(op, Wait | WaitGeneration)]
    signals = [op for op in ops if isinstance(op, Signal)]
    work = [op for op in ops if not isinstance(op, Wait | WaitGeneration | Signal)]
    return (*dict.fromkeys(waits), *work, *dict.fromkeys(signals))


def _groups(atom: AtomPlan, outer: Level, inner: Level) -> list[tuple[int, ...]]:
    """Groups of ranks that hold the chunks of `inner` in one chunk of `outer`, in buffer order."""
    chain = atom.layout.chain
    return list(dict.fromkeys(chain.members(outer, inner, rank) for rank in range(chain.world)))
