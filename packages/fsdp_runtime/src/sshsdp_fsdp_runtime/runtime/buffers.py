"""The plan's buffers: one data tree per arena, one set of nodes per atom."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from sshsdp_datatree import DataNode, TensorList
from sshsdp_fsdp_runtime.plan import AtomPlan, GroupPlan, Plan, WeightForm
from sshsdp_fsdp_runtime.plan.extent import (
    gathered_atoms,
    gradient_slot_bytes,
    list_bytes,
    reduced_atoms,
    stack,
    weight_slot_bytes,
)
from sshsdp_shardchain import Level
from sshsdp_zerosm import Arena, Region, Transport


@dataclass(slots=True)
class AtomBuffers:
    """Nodes of one atom on this rank; each is None where the plan gives the atom no such buffer.

    Attributes:
        atom: its plan.
        weights: full list of w: persistent, or in the group's slot.
        shard: w at ZeRO-3: what peers pull.
        own: w at ZeRO-1: what G writes.
        main_weight: main weights at ZeRO-1 where they are separate from w.
        main_grad: main gradients at ZeRO-2.
        gradients: full list of g': in the group's slot, or the main gradients themselves.
    """

    atom: AtomPlan
    weights: TensorList
    shard: DataNode
    own: DataNode
    main_weight: DataNode | None
    main_grad: DataNode | None
    gradients: TensorList | None

    @property
    def truth(self) -> torch.Tensor:
        """The 1-D ZeRO-1 buffer that w is made from: main weights, or w itself."""
        return (self.main_weight or self.own).tensor


class Buffers:
    """Trees over a transport's arenas. Creating it is collective."""

    def __init__(self, plan: Plan, transport: Transport, prefix: str) -> None:
        self._transport = transport
        self._prefix = prefix
        self.arenas: dict[str, Arena] = {}
        self.roots: list[DataNode] = []
        self.atoms: dict[str, AtomBuffers] = {}
        self._build(plan)

    def region(self, node: DataNode, rank: int) -> Region:
        """Where `node` lies on `rank`.

        Offsets are equal on all ranks, except those of chunks of a shared mapping.
        """
        return Region(node.root.name, rank, node.root_offset, node.nbytes)

    def peer(self, node: DataNode, rank: int) -> torch.Tensor:
        """Rank `rank`'s 1-D counterpart of `node`, readable here."""
        memory = self.arenas[node.root.name].tensor(rank)
        return memory[node.root_offset : node.root_offset + node.nbytes].view(node.dtype)

    def poison(self) -> None:
        """Fill everything with NaN."""
        for root in self.roots:
            root.tensor.fill_(0xFF)

    def detach(self) -> None:
        """Drop all views and arenas; again is nothing."""
        for root in self.roots:
            root.detach()
        self.roots.clear()
        self.arenas.clear()
        self.atoms.clear()

    def _build(self, plan: Plan) -> None:
        rank = self._transport.rank
        weight_lists = self._weight_lists(plan)
        gradient_lists = self._slots(
            plan.groups, "gradients", gradient_slot_bytes(plan.groups), reduced_atoms
        )
        shards = self._stacked(
            "shards", [(a.name, _shard_numel(a), a.weight_dtype) for a in _gathered(plan)]
        )
        main_weights = self._stacked(
            "main_weights", [_main(a, a.degrees.zero1) for a in plan.atoms if a.separate_main]
        )
        main_grads = self._stacked(
            "main_grads", [_main(a, a.degrees.zero2) for a in plan.atoms if a.trainable]
        )
        for atom in plan.atoms:
            weights = weight_lists[atom.name]
            shard = shards.get(atom.name) or _chunk(weights, atom, Level.ZERO3, rank)
            main_grad = main_grads.get(atom.name)
            gradients = gradient_lists.get(atom.name)
            if atom.accumulates_in_place:
                assert main_grad is not None
                gradients = _member_list("members", atom, main_grad, 0)
            self.atoms[atom.name] = AtomBuffers(
                atom=atom,
                weights=weights,
                shard=shard,
                own=_chunk(shard, atom, Level.ZERO1, rank, within=Level.ZERO3),
                main_weight=main_weights.get(atom.name),
                main_grad=main_grad,
                gradients=gradients,
            )
        self._attach()

    def _weight_lists(self, plan: Plan) -> dict[str, TensorList]:
        lists = self._slots(plan.groups, "weights", weight_slot_bytes(plan.groups), gathered_atoms)
        for form, name in (
            (WeightForm.ALIASED, "shared_weights"),
            (WeightForm.REPLICATED, "weights"),
        ):
            atoms = [atom for atom in plan.atoms if atom.form is form]
            offsets, total = stack(list_bytes(atom) for atom in atoms)
            root = self._root(name, total)
            for atom, offset in zip(atoms, offsets, strict=True):
                lists[atom.name] = _member_list(atom.name, atom, root, offset)
        return lists

    def _slots(
        self,
        groups: Sequence[GroupPlan],
        role: str,
        sizes: dict[int, int],
        members: Callable[[GroupPlan], tuple[AtomPlan, ...]],
    ) -> dict[str, TensorList]:
        lists = {}
        roots = {slot: self._root(f"{role}.slot{slot}", nbytes) for slot, nbytes in sizes.items()}
        for group in groups:
            atoms = members(group)
            offsets, _ = stack(list_bytes(atom) for atom in atoms)
            for atom, offset in zip(atoms, offsets, strict=True):
                lists[atom.name] = _member_list(atom.name, atom, roots[group.slot], offset)
        return lists

    def _stacked(
        self, name: str, entries: Sequence[tuple[str, int, torch.dtype]]
    ) -> dict[str, DataNode]:
        offsets, total = stack(numel * dtype.itemsize for _, numel, dtype in entries)
        root = self._root(name, total)
        return {
            atom: DataNode(atom, (numel,), dtype, parent=root, byte_offset=offset)
            for (atom, numel, dtype), offset in zip(entries, offsets, strict=True)
        }

    def _root(self, name: str, nbytes: int) -> DataNode:
        root = DataNode(self._prefix + name, (nbytes,), torch.uint8)
        self.roots.append(root)
        return root

    def _attach(self) -> None:
        for root in self.roots:
            root.finalize()
            shared = root.name.endswith("shared_weights")
            arena = self._transport.arena(root.name, root.nbytes, shared=shared)
            self.arenas[root.name] = arena
            root.attach(arena.tensor())


def _gathered(plan: Plan) -> list[AtomPlan]:
    return [atom for atom in plan.atoms if atom.form is WeightForm.GATHERED]


def _shard_numel(atom: AtomPlan) -> int:
    return atom.chunk_numel(atom.degrees.zero3)


def _main(atom: AtomPlan, degree: int) -> tuple[str, int, torch.dtype]:
    assert atom.main_dtype is not None
    return atom.name, atom.chunk_numel(degree), atom.main_dtype


def _member_list(name: str, atom: AtomPlan, parent: DataNode, offset: int) -> TensorList:
    return TensorList.build(
        name,
        atom.weight_dtype,
        [
            (parameter.name, parameter.shape, atom.layout.placement(parameter.name).offset)
            for parameter in atom.parameters
        ],
        atom.layout.numel,
        parent=parent,
        byte_offset=offset,
    )


def _chunk(
    parent: DataNode, atom: AtomPlan, level: Level, rank: int, within: Level = Level.FULL
) -> DataNode:
    chain = atom.layout.chain
    own, outer = chain.range(level, rank), chain.range(within, rank)
    return DataNode(
        f"@{level}",
        (own.numel,),
        atom.weight_dtype,
        parent=parent,
        byte_offset=(own.start - outer.start) * atom.weight_dtype.itemsize,
    )
