"""The plan's buffers: one data tree per arena, one set of nodes per atom."""

import weakref
from dataclasses import dataclass

import torch

from sshsdp_datatree import DataNode, TensorList
from sshsdp_fsdp_runtime.plan import AtomPlan, Field, Plan, Span
from sshsdp_zerosm import Arena, Transport


@dataclass(slots=True)
class AtomBuffers:
    """Nodes of one atom on this rank; each is None where the plan gives the atom no such buffer.

    Attributes:
        atom: its plan.
        weights: full list of w: persistent, or in the group's slot.
        shard: w at ZeRO-3: what peers gather.
        own: w at ZeRO-1: what G writes.
        main_weight: main weights at ZeRO-1 where they are separate from w.
        accumulator: sums of g' at ZeRO-2.
        main_grad: main gradients at ZeRO-1; the accumulator itself where the levels agree.
        gradients: full list of g': in the group's slot, or the accumulator itself.
    """

    atom: AtomPlan
    weights: TensorList
    shard: DataNode
    own: DataNode
    main_weight: DataNode | None
    accumulator: DataNode | None
    main_grad: DataNode | None
    gradients: TensorList | None

    @property
    def truth(self) -> torch.Tensor:
        """The 1-D ZeRO-1 buffer that w is made from: main weights, or w itself."""
        return (self.main_weight or self.own).tensor


class Buffers:
    """Trees over a transport's arenas. Creating it is collective.

    Attributes:
        arenas: by their name in the plan.
        roots: of the trees.
        atoms: by name.
    """

    def __init__(self, plan: Plan, transport: Transport, prefix: str) -> None:
        self.arenas: dict[str, Arena] = {}
        self.roots: list[DataNode] = []
        self.atoms: dict[str, AtomBuffers] = {}
        self._storage = plan.storage
        self._rank = transport.rank
        roots = {}
        for arena in plan.storage.arenas:
            root = roots[arena.name] = DataNode(prefix + arena.name, (arena.nbytes,), torch.uint8)
            self.roots.append(root)
        for atom in plan.atoms:
            self.atoms[atom.name] = self._nodes(atom, roots)
        for arena, root in zip(plan.storage.arenas, self.roots, strict=True):
            root.finalize()
            memory = transport.arena(root.name, arena.nbytes, shared=arena.shared)
            self.arenas[arena.name] = memory
            root.attach(memory.tensor())
        # Also of a model that nobody closes.
        names = [root.name for root in self.roots]
        self._release = weakref.finalize(self, transport.release, names)
        self._release.atexit = False

    def truth_of(self, atom: AtomPlan, rank: int) -> torch.Tensor:
        """The 1-D ZeRO-1 buffer from which `rank` makes its part of w, readable here."""
        span = self._storage.truth(atom, rank)
        memory = self.arenas[span.arena].tensor(rank)
        return memory[span.offset : span.offset + span.nbytes].view(span.dtype)

    def poison(self) -> None:
        """Fill the fields of all atoms with NaN; peers write to none of them yet."""
        for root in self.roots:
            if root.children:
                root.tensor.fill_(0xFF)

    def detach(self) -> None:
        """Drop all views and arenas; again is nothing."""
        for root in self.roots:
            root.detach()
        self.roots.clear()
        self.arenas.clear()
        self.atoms.clear()
        self._release()

    def _nodes(self, atom: AtomPlan, roots: dict[str, DataNode]) -> AtomBuffers:
        weights = self._list(atom, Field.WEIGHTS, roots)
        assert weights is not None
        shard = self._node(atom, Field.SHARD, roots, weights)
        assert shard is not None
        own = self._node(atom, Field.OWN, roots, shard)
        assert own is not None
        accumulator = self._node(atom, Field.ACCUMULATOR, roots)
        return AtomBuffers(
            atom=atom,
            weights=weights,
            shard=shard,
            own=own,
            main_weight=self._node(atom, Field.MAIN_WEIGHT, roots),
            accumulator=accumulator,
            main_grad=self._node(atom, Field.MAIN_GRAD, roots) or accumulator,
            gradients=self._list(atom, Field.GRADIENTS, roots, accumulator),
        )

    def _node(
        self,
        atom: AtomPlan,
        field: Field,
        roots: dict[str, DataNode],
        whole: DataNode | None = None,
    ) -> DataNode | None:
        """A field of its own under its arena's root, or a part of `whole`."""
        span = self._storage.span(atom, field, self._rank)
        own = self._storage.allocated(atom, field)
        if span is None or (not own and whole is None):
            return None
        parent, offset = _parent(span, roots, None if own else whole)
        return DataNode(
            atom.name if own else f"@{field}",
            (span.numel,),
            span.dtype,
            parent=parent,
            byte_offset=offset,
        )

    def _list(
        self,
        atom: AtomPlan,
        field: Field,
        roots: dict[str, DataNode],
        whole: DataNode | None = None,
    ) -> TensorList | None:
        """The same for a field that holds the atom's members."""
        span = self._storage.span(atom, field, self._rank)
        if span is None:
            return None
        own = self._storage.allocated(atom, field)
        parent, offset = _parent(span, roots, None if own else whole)
        return TensorList.build(
            atom.name if own else f"@{field}",
            span.dtype,
            [
                (parameter.name, parameter.shape, atom.layout.placement(parameter.name).offset)
                for parameter in atom.parameters
            ],
            span.numel,
            parent=parent,
            byte_offset=offset,
        )


def _parent(span: Span, roots: dict[str, DataNode], whole: DataNode | None) -> tuple[DataNode, int]:
    """The node that a span lies in, and its offset there; all offsets are those of the plan."""
    if whole is None:
        return roots[span.arena], span.offset
    position, node = 0, whole
    while node.parent is not None:
        position, node = position + node.byte_offset, node.parent
    return whole, span.offset - position
