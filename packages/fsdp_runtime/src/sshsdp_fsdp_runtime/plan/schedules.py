"""The plan's communication as zerosm schedules: one per group or atom and purpose."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sshsdp_fsdp_runtime.plan.atom import AtomPlan, WeightForm
from sshsdp_fsdp_runtime.plan.group import GroupPlan
from sshsdp_fsdp_runtime.plan.plan import Plan
from sshsdp_fsdp_runtime.plan.storage import (
    CHUNK_BYTES,
    PARTIALS,
    Field,
    gathered_within_nodes,
    reduced_atoms,
)
from sshsdp_shardchain import Degrees, Level
from sshsdp_zerosm import (
    Op,
    Region,
    Schedule,
    Signal,
    Wait,
    all_gather_aliased,
    by_rank,
    hierarchical_all_gather,
    hierarchical_all_reduce,
    hierarchical_reduce_scatter,
    merge,
)


class ScheduleBook:
    """Builds the schedules of a plan. Each is expanded for the ranks that are asked for.

    Channels are shared by all atoms of equal degrees, which use them in an order that is the same
    on all ranks.

    Args:
        plan: what was decided.
        prefix: put before the names of arenas and channels, so that several models share a
            transport.
    """

    def __init__(self, plan: Plan, prefix: str = "") -> None:
        self._plan = plan
        self._prefix = prefix
        self._world = plan.world
        self._cuts: dict[int, dict[Degrees, AtomPlan]] = {}  # by slot, one atom of each kind
        for group in plan.groups:
            cuts = self._cuts.setdefault(group.slot, {})
            cuts.update((atom.degrees, atom) for atom in reduced_atoms(group))

    def region(self, atom: AtomPlan, field: Field, rank: int) -> Region:
        """Where a field that the plan gives to `atom` lies on `rank`."""
        span = self._plan.storage.span(atom, field, rank)
        assert span is not None
        return Region(self._prefix + span.arena, rank, span.offset, span.nbytes)

    def gather(self, group: GroupPlan) -> Schedule | None:
        """Phase "gather": the group's full weights become readable; None if they always are.

        Where that stays within nodes, ranks gather as their own forwards and backwards have it.
        """
        parts = []
        for atom in group.atoms:
            if atom.form is WeightForm.ALIASED:
                parts.append(self._see(atom))
            elif atom.form is WeightForm.GATHERED:
                parts.append(
                    self._gather(atom, (Level.FULL, Level.ZERO3), (Field.SHARD, Field.WEIGHTS))
                )
        if not parts:
            return None
        work = merge(f"{self._prefix}gather {group.label}", parts)
        within = all(gathered_within_nodes(atom, self._plan.topology) for atom in group.atoms)
        return replace(work, unordered=frozenset({"gather"} if within else ()))

    def gather_shards(self) -> Schedule | None:
        """Phase "gather", once per update: w at ZeRO-1 becomes w at ZeRO-3; None if it is that."""
        parts = [
            self._gather(atom, (Level.ZERO3, Level.ZERO1), (Field.OWN, Field.SHARD))
            for atom in self._plan.atoms
            if atom.updates_apart
        ]
        return merge(f"{self._prefix}gather shards", parts) if parts else None

    def reduce(self, group: GroupPlan) -> Schedule | None:
        """Phases "acquire", "ready" and "reduce" of the group's turn in its gradient slot.

        Atoms with different degrees have different readers, and groups with different atoms take
        turns. So every turn counts for all ranks that ever read the slot: the channels' counts stay
        in step, and the memory is free of the turn before, whatever that was.
        """
        meeting = _Meeting(
            f"{self._prefix}slot{group.slot}", lambda rank: self._readers(group.slot, rank)
        )
        parts = [
            self._reduce(
                atom,
                (Level.FULL, Level.ZERO2),
                (Field.GRADIENTS, Field.ACCUMULATOR),
                meeting.name,
                last=not atom.separate_main_grad and atom.replicas == 1,
            )
            for atom in reduced_atoms(group)
        ]
        if not parts:
            return None
        work = merge(f"{self._prefix}reduce {group.label}", parts)
        return Schedule(
            work.name,
            self._world,
            {
                "acquire": lambda rank: meeting.wait(rank, "done", credit=1),
                "ready": lambda rank: meeting.signal(rank, "ready"),
                "reduce": lambda rank: (
                    *meeting.wait(rank, "ready"),
                    *meeting.without(work.expand("reduce", rank)),
                    *meeting.signal(rank, "done"),
                ),
            },
            work.channels,
            work.least_between,
            frozenset({"acquire"}),  # when a group is first written to is each rank's own affair
        )

    def reduce_sums(self, atom: AtomPlan) -> Schedule | None:
        """Phase "reduce", once per step: sums at ZeRO-2 become main gradients at ZeRO-1."""
        if not atom.separate_main_grad:
            return None
        meeting = _Meeting(
            self._channel("sums", atom), lambda rank: self._beside(atom, Level.ZERO2, rank)
        )
        work = self._reduce(
            atom,
            (Level.ZERO2, Level.ZERO1),
            (Field.ACCUMULATOR, Field.MAIN_GRAD),
            meeting.name,
            last=atom.replicas == 1,
        )
        return Schedule(
            f"{self._prefix}reduce sums {atom.name}",
            self._world,
            {
                "reduce": lambda rank: (
                    *meeting.signal(rank, "ready"),
                    *meeting.wait(rank, "ready"),
                    *meeting.without(work.expand("reduce", rank)),
                    *meeting.signal(rank, "done"),
                    *meeting.wait(rank, "done"),  # then the next microbatch may add to the sums
                )
            },
            work.channels,
            work.least_between,
        )

    def sum_replicas(self, atom: AtomPlan) -> Schedule | None:
        """Phase "reduce": main gradients become the sum over replicas, equal on all of them."""
        dtype = atom.main_dtype
        if dtype is None or atom.replicas == 1:
            return None
        chain = atom.layout.chain
        channels = self._channel("replicas", atom)
        return by_rank(
            f"{self._prefix}sum replicas {atom.name}",
            world=self._world,
            part=lambda rank: hierarchical_all_reduce(
                atom.name,
                buffers=lambda peer: self.region(atom, Field.MAIN_GRAD, peer),
                dtype=dtype,
                accumulator=dtype,
                group=chain.replicas(Level.ZERO1, rank),
                topology=self._plan.topology,
                workspace=self._workspace,
                chunk_align=64 // dtype.itemsize,
                chunk_bytes=CHUNK_BYTES,
                scale=self._scale(last=True),
                channels=channels,
            ),
        )

    def _see(self, atom: AtomPlan) -> Schedule:
        chain = atom.layout.chain
        return by_rank(
            atom.name,
            world=self._world,
            part=lambda rank: all_gather_aliased(
                atom.name, group=chain.members(Level.FULL, Level.ZERO3, rank), world=self._world
            ),
        )

    def _gather(
        self, atom: AtomPlan, levels: tuple[Level, Level], fields: tuple[Field, Field]
    ) -> Schedule:
        outer, inner = levels
        source, target = fields
        channels = self._channel(f"gather {target}", atom)
        return by_rank(
            atom.name,
            world=self._world,
            part=lambda rank: hierarchical_all_gather(
                atom.name,
                shards=lambda peer: self.region(atom, source, peer),
                outputs=lambda peer: self.region(atom, target, peer),
                group=atom.layout.chain.members(outer, inner, rank),
                topology=self._plan.topology,
                chunk_bytes=CHUNK_BYTES,
                channels=channels,
            ),
        )

    def _reduce(
        self,
        atom: AtomPlan,
        levels: tuple[Level, Level],
        fields: tuple[Field, Field],
        slot: str,
        *,
        last: bool,
    ) -> Schedule:
        outer, inner = levels
        source, target = fields
        accumulator = atom.main_dtype
        assert accumulator is not None
        channels = self._channel(f"reduce {source}", atom)
        return by_rank(
            atom.name,
            world=self._world,
            part=lambda rank: hierarchical_reduce_scatter(
                atom.name,
                inputs=lambda peer: self.region(atom, source, peer),
                accumulators=lambda peer: self.region(atom, target, peer),
                dtype=atom.weight_dtype if source is Field.GRADIENTS else accumulator,
                accumulator=accumulator,
                group=atom.layout.chain.members(outer, inner, rank),
                topology=self._plan.topology,
                workspace=self._workspace,
                slot=slot,
                chunk_bytes=CHUNK_BYTES,
                scale=self._scale(last=last),
                channels=channels,
            ),
        )

    def _readers(self, slot: int, rank: int) -> tuple[int, ...]:
        """The other ranks that read gradients from `rank`'s slot, whoever has its turn."""
        cuts = self._cuts[slot].values()
        return tuple(
            dict.fromkeys(p for atom in cuts for p in self._beside(atom, Level.FULL, rank))
        )

    def _beside(self, atom: AtomPlan, outer: Level, rank: int) -> tuple[int, ...]:
        """The other ranks of the node that hold a part of what is reduced from `outer`."""
        inner = Level.ZERO2 if outer is Level.FULL else Level.ZERO1
        topology = self._plan.topology
        node = topology.node_of(rank)
        members = atom.layout.chain.members(outer, inner, rank)
        at = members.index(rank)
        # Starting after the rank itself spreads the ranks over those that they wait for.
        others = (*members[at + 1 :], *members[:at])
        return tuple(peer for peer in others if topology.node_of(peer) == node)

    def _workspace(self, rank: int) -> Region:
        return Region(self._prefix + PARTIALS, rank, 0, self._plan.storage.arena(PARTIALS).nbytes)

    def _channel(self, purpose: str, atom: AtomPlan) -> str:
        degrees = atom.degrees
        return f"{self._prefix}{purpose} {degrees.zero3},{degrees.zero2},{degrees.zero1}"

    def _scale(self, *, last: bool) -> float:
        """Factor of a sum; averaging comes with the last of them."""
        return 1.0 / self._world if last and self._plan.options.average == "mean" else 1.0


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Signals between ranks around memory that they read of each other.

    Attributes:
        name: of the memory; "ready" says that it is written, "done" that it was read.
        peers: the ranks that a rank meets.
    """

    name: str
    peers: Callable[[int], tuple[int, ...]]

    def signal(self, rank: int, what: str) -> Sequence[Op]:
        """Tell all peers."""
        return (Signal(f"{self.name}.{what}", self.peers(rank)),)

    def wait(self, rank: int, what: str, credit: int = 0) -> Sequence[Op]:
        """Hear of all peers."""
        return [Wait(peer, f"{self.name}.{what}", credit) for peer in self.peers(rank)]

    def without(self, ops: Sequence[Op]) -> Sequence[Op]:
        """Operations less those by which their builder lets their own ranks meet."""
        channels = (f"{self.name}.ready", f"{self.name}.done")
        return [op for op in ops if not isinstance(op, Wait | Signal) or op.channel not in channels]
