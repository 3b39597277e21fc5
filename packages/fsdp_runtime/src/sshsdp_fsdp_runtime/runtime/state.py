"""Everything that a sharded model has at run time, built from its plan."""

from typing import Literal

import torch
from torch import nn

from sshsdp_fsdp_runtime.plan import PackPlan, Plan, ScheduleBook, Votes
from sshsdp_fsdp_runtime.plan.storage import TEMPORARIES, gathered_within_nodes
from sshsdp_fsdp_runtime.runtime.ballot import Ballot
from sshsdp_fsdp_runtime.runtime.buffers import Buffers
from sshsdp_fsdp_runtime.runtime.closed import closed_error
from sshsdp_fsdp_runtime.runtime.deferred_init import Construction
from sshsdp_fsdp_runtime.runtime.finishing import Finishing
from sshsdp_fsdp_runtime.runtime.gradient_group import GradientGroup, GradientSlot
from sshsdp_fsdp_runtime.runtime.gradients import Gradients
from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle
from sshsdp_fsdp_runtime.runtime.initial_values import distribute
from sshsdp_fsdp_runtime.runtime.labelled_program import LabelledProgram
from sshsdp_fsdp_runtime.runtime.packed import Packed
from sshsdp_fsdp_runtime.runtime.passes import Passes
from sshsdp_fsdp_runtime.runtime.steps import Steps, WeightUpdate
from sshsdp_fsdp_runtime.runtime.tally import Tally
from sshsdp_fsdp_runtime.runtime.weights import WeightGroup, WeightSlot
from sshsdp_shardchain import ChainHolders, Level
from sshsdp_updates import ShardedOptimizer, UpdateList, UpdateMember
from sshsdp_zerosm import Schedule, Transport, TransportExchange


class RuntimeState:
    """Buffers, groups, passes, gradients and the optimizer of one model. Building is collective.

    Attributes:
        plan: what was decided.
        transport: connects the ranks.
        handles: all parameters, in the order of the plan.
        weights: weight groups by module name.
        packs: layers that are computed as one.
        optimizer: None where nothing is trainable.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        transport: Transport,
        prefix: str,
        sync: Literal["rank0", "assert"],
        construction: Construction | None = None,
    ) -> None:
        self.plan = plan
        self.transport = transport
        self._prefix = prefix
        self._programs: list[LabelledProgram] = []
        self.buffers = Buffers(plan, transport, prefix)
        self._ballot = self._make_ballot()
        tally = Tally(self._ballot, transport.abort)
        if plan.options.poison:
            self.buffers.poison()
        book = ScheduleBook(plan, prefix)
        self.weights = self._weight_groups(book)
        self.handles = self._handles(model)
        self.by_name = {handle.spec.name: handle for handle in self.handles}
        trainable = [handle for handle in self.handles if handle.buffers.atom.trainable]
        self.passes = Passes(
            self._gradient_groups(book),
            list(self.weights.values()),
            tally,
            ordered=plan.topology.nodes > 1,
        )
        for handle in trainable:
            handle.passes = self.passes
        self.packs = tuple(self._pack(pack) for pack in plan.packs)
        self.gradients = Gradients(
            trainable,
            self.passes,
            transport,
            self._finishing(book),
        )
        atoms = list(self.buffers.atoms.values())
        groups = list(self.weights.values())
        gather = self._program(book.gather_shards())
        self.update = WeightUpdate(transport, atoms, gather, groups, self.handles)
        self.update.begin()
        if construction is None:
            distribute(model, self.handles, transport, sync)
        else:
            construction.fill(self.handles, transport, sync)
            distribute(model, [], transport, sync)  # buffers, also those of no recording
        self._adopt()
        self.update.end()
        self.optimizer = self._optimizer() if trainable else None

    def _make_ballot(self) -> Ballot | None:
        if self.transport.world == 1:
            return None
        votes = Votes.of(self.plan.spec, self.plan.groups, self.plan.topology)
        return Ballot(votes, self.transport, self.buffers.arenas["votes"])

    def _program(self, schedule: Schedule | None) -> LabelledProgram | None:
        if schedule is None:
            return None
        name = schedule.name.removeprefix(self._prefix)
        program = LabelledProgram(self.transport.compile(schedule), name)
        self._programs.append(program)
        return program

    def _weight_groups(self, book: ScheduleBook) -> dict[str, WeightGroup]:
        slots: dict[int, WeightSlot] = {}
        groups = {}
        for plan in self.plan.groups:
            groups[plan.module] = WeightGroup(
                plan,
                self._program(book.gather(plan)),
                slots.setdefault(plan.slot, WeightSlot()),
                poison=self.plan.options.poison,
            )
        return groups

    def _handles(self, model: nn.Module) -> list[ParameterHandle]:
        parameters = dict(model.named_parameters())
        home = {
            parameter.name: (atom.name, group.module)
            for group in self.plan.groups
            for atom in group.atoms
            for parameter in atom.parameters
        }
        handles = []
        for index, spec in enumerate(self.plan.spec.parameters):
            atom, module = home[spec.name]
            handles.append(
                ParameterHandle(
                    spec=spec,
                    index=index,
                    parameter=parameters[spec.name],
                    buffers=self.buffers.atoms[atom],
                    weights=self.weights[module],
                )
            )
        return handles

    def _pack(self, plan: PackPlan) -> Packed:
        weights = [self.by_name[name] for name in plan.weights]
        pack = Packed(plan, weights, [self.by_name[name] for name in plan.biases])
        for index, handle in enumerate(weights):
            handle.pack, handle.pack_index = pack, index
        return pack

    def _gradient_groups(self, book: ScheduleBook) -> list[GradientGroup]:
        slots: dict[int, GradientSlot] = {}
        groups = []
        for index, plan in enumerate(self.plan.reduction_order):
            group = GradientGroup(
                plan,
                index,
                slots.setdefault(plan.slot, GradientSlot()),
                self._program(book.reduce(plan)),
                poison=self.plan.options.poison,
            )
            weights = self.weights[plan.module]
            group.adopt(
                [h for h in self.handles if h.weights is weights and h.buffers.atom.trainable]
            )
            groups.append(group)
        return groups

    def _finishing(self, book: ScheduleBook) -> list[Finishing]:
        mean = self.plan.options.average == "mean"
        return [
            Finishing(
                self.buffers.atoms[atom.name],
                [h for h in self.handles if h.buffers.atom is atom],
                self._program(book.reduce_sums(atom)),
                self._program(book.sum_replicas(atom)),
                rank=self.transport.rank,
                undo=float(self.transport.world) if mean else 1.0,
            )
            for atom in self.plan.atoms
            if atom.trainable
        ]

    def _adopt(self) -> None:
        for group in self.weights.values():
            group.adopt([handle for handle in self.handles if handle.weights is group])

    def _optimizer(self) -> ShardedOptimizer:
        return ShardedOptimizer(
            [self._update_list(name) for name, b in self.buffers.atoms.items() if b.atom.trainable],
            steps=Steps(self.gradients, self.update),
            skip_nonfinite=self.plan.options.skip_nonfinite,
            exchange=TransportExchange(
                self.transport,
                self.buffers.arenas.get(TEMPORARIES),
                name=f"{self._prefix}{TEMPORARIES}",
            ),
        )

    def _update_list(self, name: str) -> UpdateList:
        buffers = self.buffers.atoms[name]
        atom, rank = buffers.atom, self.transport.rank
        assert atom.rule is not None
        assert buffers.main_grad is not None
        return UpdateList(
            name=name,
            rule=atom.rule,
            members=tuple(
                UpdateMember(
                    name=spec.name,
                    parameter=self.by_name[spec.name].parameter,
                    fragment=atom.layout.fragment(spec.name, Level.ZERO1, rank),
                    shape=spec.shape,
                    unit=unit,
                )
                for spec, unit in zip(atom.parameters, atom.units, strict=True)
            ),
            main_weight=buffers.truth,
            main_grad=buffers.main_grad.tensor,
            counted=rank < atom.degrees.zero1,
            holders=ChainHolders(atom.layout),
        )

    def join(self) -> int:
        """Take part in the passes of others; see `ShardedModule.join`."""
        for atom in self.plan.atoms:
            if not gathered_within_nodes(atom, self.plan.topology):
                raise RuntimeError(
                    "expected weights that are gathered within a node, so that a rank can sit out, "
                    f"got zero3={atom.degrees.zero3} with {self.plan.topology.ranks_per_node} "
                    "ranks per node; choose a zero3 that divides them, or give every rank as many "
                    "microbatches"
                )
        return self.passes.join()

    def check_open(self) -> None:
        """Called when a backward begins, which may be of a graph from before.

        Raises:
            RuntimeError: the model was closed.
        """
        if not self.buffers.roots:
            raise closed_error()

    def close(self) -> None:
        """Make the parameters ordinary and empty, and let go of all buffers.

        Whatever the user still holds, an optimizer, a gradient or a graph, keeps none of them.
        """
        for handle in self.handles:
            with torch._C.DisableTorchFunctionSubclass():
                handle.parameter.data = torch.empty(0, dtype=handle.parameter.dtype)
            handle.parameter.__class__ = nn.Parameter
            del handle.parameter._handle  # type: ignore[attr-defined]
            handle.weight = torch.empty(0)
            handle.gradient = None
        if self.optimizer is not None:
            self.optimizer.close()
        if self._ballot is not None:
            self._ballot.close()
        for program in self._programs:
            program.release()
        self.buffers.detach()
