"""The plan's communication as zerosm schedules: one per group and purpose."""

from collections.abc import Sequence

from sshsdp_fsdp_runtime.plan import AtomPlan, GroupPlan, Plan, WeightForm
from sshsdp_fsdp_runtime.plan.extent import reduced_atoms
from sshsdp_fsdp_runtime.runtime.buffers import Buffers
from sshsdp_shardchain import Level
from sshsdp_zerosm import (
    Op,
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
    """Builds schedules over a plan's buffers."""

    def __init__(self, plan: Plan, buffers: Buffers, prefix: str) -> None:
        self._plan = plan
        self._buffers = buffers
        self._prefix = prefix
        self._world = plan.world

    def gather(self, group: GroupPlan) -> Schedule | None:
        """Phase "gather": the group's full weights become readable; None if they always are."""
        parts = []
        for atom in group.atoms:
            for ranks in _groups(atom, Level.ZERO3):
                if atom.form is WeightForm.ALIASED:
                    parts.append(all_gather_aliased(atom.name, group=ranks, world=self._world))
                elif atom.form is WeightForm.GATHERED:
                    own = self._buffers.atoms[atom.name]
                    parts.append(
                        all_gather_pull(
                            atom.name,
                            shards=[self._buffers.region(own.shard, rank) for rank in ranks],
                            outputs=[self._buffers.region(own.weights, rank) for rank in ranks],
                            group=ranks,
                            world=self._world,
                        )
                    )
        return self._joined(f"{self._prefix}gather {group.label}", parts)

    def reduce(self, group: GroupPlan) -> Schedule | None:
        """Phases "acquire", "ready" and "reduce" of the group's turn in its gradient slot."""
        mean = self._plan.options.average == "mean"
        parts = []
        for atom in reduced_atoms(group):
            own = self._buffers.atoms[atom.name]
            assert own.gradients is not None
            assert own.main_grad is not None
            assert atom.main_dtype is not None
            # Sums over replicas follow when gradients are finalized, and are averaged there.
            averaged = mean and atom.replicas == 1
            parts += [
                reduce_scatter(
                    atom.name,
                    inputs=[self._buffers.region(own.gradients, rank) for rank in ranks],
                    accumulators=[self._buffers.region(own.main_grad, rank) for rank in ranks],
                    dtype=atom.weight_dtype,
                    accumulator=atom.main_dtype,
                    group=ranks,
                    world=self._world,
                    slot=f"{self._prefix}slot{group.slot}",
                    scale=1.0 / self._world if averaged else 1.0,
                )
                for ranks in _groups(atom, Level.ZERO2)
            ]
        return self._joined(f"{self._prefix}reduce {group.label}", parts)

    def sum_replicas(self, atom: AtomPlan) -> Schedule:
        """Phase "reduce": main gradients become the sum over replicas, equal on all of them."""
        own = self._buffers.atoms[atom.name]
        assert own.main_grad is not None
        assert atom.main_dtype is not None
        mean = self._plan.options.average == "mean"
        parts = []
        for rank in range(atom.degrees.zero1):
            ranks = atom.layout.chain.replicas(Level.ZERO1, rank)
            parts.append(
                all_reduce(
                    f"{self._prefix}replicas {atom.name}",
                    buffers=[self._buffers.region(own.main_grad, peer) for peer in ranks],
                    dtype=atom.main_dtype,
                    accumulator=atom.main_dtype,
                    group=ranks,
                    world=self._world,
                    chunk_align=64 // atom.main_dtype.itemsize,
                    scale=1.0 / self._world if mean else 1.0,
                )
            )
        joined = self._joined(f"{self._prefix}replicas {atom.name}", parts)
        assert joined is not None
        return joined

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


def _groups(atom: AtomPlan, level: Level) -> list[tuple[int, ...]]:
    """Groups of ranks that hold all chunks of the list at `level`, in buffer order."""
    chain = atom.layout.chain
    degree = len(chain.owners(level))
    return [chain.owners(level, replica) for replica in range(chain.world // degree)]
