"""Where every buffer of ours lies: arenas, and the span of each atom's field on each rank."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import gcd

import torch

from sshsdp_fsdp_runtime.plan.atom import ALIGN_BYTES, AtomPlan, WeightForm
from sshsdp_fsdp_runtime.plan.group import GroupPlan
from sshsdp_fsdp_runtime.plan.model_spec import ModelSpec
from sshsdp_fsdp_runtime.plan.votes import Votes
from sshsdp_shardchain import Degrees, Level, Range, ShardChain
from sshsdp_zerosm import Topology, all_reduce_workspace, reduce_scatter_workspace


class Field(StrEnum):
    """What an atom keeps, each at its level of the shard chain."""

    WEIGHTS = "weights"  # the full list of w
    SHARD = "shard"  # w at ZeRO-3: what peers gather
    OWN = "own"  # w at ZeRO-1: what G writes, a part of the shard
    MAIN_WEIGHT = "main_weight"  # at ZeRO-1, where it is not w itself
    GRADIENTS = "gradients"  # the full list of g' of a microbatch
    ACCUMULATOR = "accumulator"  # sums of g' at ZeRO-2
    MAIN_GRAD = "main_grad"  # at ZeRO-1, where it is not the accumulator itself


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Memory that is taken at once.

    Attributes:
        name: unique in the plan.
        nbytes: on every rank; of a shared one, once for all ranks of a node.
        shared: whether the ranks of a node see the same bytes.
    """

    name: str
    nbytes: int
    shared: bool


@dataclass(frozen=True, slots=True)
class Span:
    """A run of elements in an arena; `offset` in bytes from the arena's start."""

    arena: str
    offset: int
    numel: int
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Its length in bytes."""
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Storage:
    """All buffers of a plan, as integers: nothing is allocated.

    Offsets are equal on all ranks, except those of chunks inside a longer buffer, which follow
    from the shard chain.

    Attributes:
        arenas: in the order in which ranks take them.
        topology: which ranks share a node, and so its shared arenas.
    """

    arenas: tuple[ArenaPlan, ...]
    topology: Topology
    _bases: dict[tuple[str, Field], tuple[str, int]]  # allocated fields: arena and offset

    @classmethod
    def of(
        cls, spec: ModelSpec, groups: Sequence[GroupPlan], topology: Topology, update_bytes: int
    ) -> "Storage":
        """Place the fields of all atoms of `groups`, and what ranks need to talk about them.

        Args:
            spec: the model.
            groups: its runtime groups.
            topology: how the ranks lie on nodes.
            update_bytes: temporaries of the optimizer.
        """
        arenas: list[ArenaPlan] = []
        bases: dict[tuple[str, Field], tuple[str, int]] = {}
        atoms = [atom for group in groups for atom in group.atoms]
        for arena, entries in (*_slot_arenas(groups), *_whole_arenas(atoms, topology)):
            arenas.append(arena)
            bases.update({key: (arena.name, offset) for key, offset in entries})
        if partials := _partial_bytes(atoms, topology):
            arenas.append(ArenaPlan(PARTIALS, partials, shared=False))
        if update_bytes:
            arenas.append(ArenaPlan(TEMPORARIES, update_bytes, shared=False))
        if topology.world > 1:
            arenas.append(ArenaPlan("votes", Votes.of(spec, groups, topology).nbytes, shared=False))
        return cls(tuple(arenas), topology, bases)

    def arena(self, name: str) -> ArenaPlan:
        """The arena of this name; KeyError if the plan has none."""
        for arena in self.arenas:
            if arena.name == name:
                return arena
        raise KeyError(f"expected one of {[a.name for a in self.arenas]}, got {name!r}")

    def allocated(self, atom: AtomPlan, field: Field) -> bool:
        """Whether the field has bytes of its own, rather than being a part of another field."""
        return (atom.name, field) in self._bases

    def span(self, atom: AtomPlan, field: Field, rank: int) -> Span | None:
        """Where a field of `atom` lies on `rank`; None if the plan gives the atom no such field."""
        base = self._bases.get((atom.name, field))
        if base is not None:
            offset = base[1]
            if field is Field.WEIGHTS and atom.form is WeightForm.ALIASED:
                offset += self._copy(atom, rank) * list_bytes(atom)
            return Span(base[0], offset, *_extent(atom, field))
        match field:
            case Field.SHARD:
                return self._chunk(atom, Field.WEIGHTS, Level.FULL, Level.ZERO3, rank)
            case Field.OWN:
                return self._chunk(atom, Field.SHARD, Level.ZERO3, Level.ZERO1, rank)
            case Field.GRADIENTS if atom.accumulates_in_place:
                return self.span(atom, Field.ACCUMULATOR, rank)
            case Field.MAIN_GRAD if atom.trainable:
                return self.span(atom, Field.ACCUMULATOR, rank)
        return None

    def truth(self, atom: AtomPlan, rank: int) -> Span:
        """The ZeRO-1 buffer that w is made from: main weights, or w itself."""
        span = self.span(atom, Field.MAIN_WEIGHT, rank) or self.span(atom, Field.OWN, rank)
        assert span is not None
        return span

    def _copy(self, atom: AtomPlan, rank: int) -> int:
        """Which of the copies in a node's shared arena is that of `rank`'s ZeRO-3 group."""
        return self.topology.local_rank(rank) // atom.degrees.zero3

    def _chunk(self, atom: AtomPlan, field: Field, outer: Level, inner: Level, rank: int) -> Span:
        """The part of a longer buffer that the shard chain gives to `rank`."""
        chain = atom.layout.chain
        whole = self.span(atom, field, rank)
        assert whole is not None
        held: Range = chain.range(inner, rank)
        start = held.start - chain.range(outer, rank).start
        offset = whole.offset + start * whole.dtype.itemsize
        return Span(whole.arena, offset, held.numel, whole.dtype)


def list_bytes(atom: AtomPlan) -> int:
    """Bytes of the atom's whole list of w, which is also that of g'."""
    return atom.layout.numel * atom.weight_dtype.itemsize


def reduced_atoms(group: GroupPlan) -> tuple[AtomPlan, ...]:
    """The group's atoms whose gradients pass through a slot and are reduced from there."""
    return tuple(a for a in group.atoms if a.trainable and not a.accumulates_in_place)


def gathered_atoms(group: GroupPlan) -> tuple[AtomPlan, ...]:
    """The group's atoms whose full weights live in a slot while they are resident."""
    return tuple(a for a in group.atoms if a.form is WeightForm.GATHERED)


def gathered_within_nodes(atom: AtomPlan, topology: Topology) -> bool:
    """Whether no rank needs another node for the atom's full weights between updates."""
    return topology.ranks_per_node % atom.degrees.zero3 == 0


def align_bytes(nbytes: int) -> int:
    """Round up to a multiple of `ALIGN_BYTES`."""
    return -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES


PARTIALS = "partials"  # arena for sums of one node's gradients on their way between nodes

TEMPORARIES = "temporaries"  # arena of what the optimizer keeps for the time of a step

CHUNK_BYTES = 2**20  # of a shard or sum that is on its way while another is worked on


def _partial_bytes(atoms: Sequence[AtomPlan], topology: Topology) -> int:
    """Bytes of partial sums: the most that any reduction needs, since they take turns."""
    if topology.nodes == 1:  # there are none, which is not asked of each of 100,000 ranks
        return 0
    longest: dict[tuple[Degrees, torch.dtype], int] = {}
    for atom in atoms:
        if atom.main_dtype is not None:
            key = (atom.degrees, atom.main_dtype)
            longest[key] = max(longest.get(key, 0), atom.layout.numel)
    return max(
        (
            needed
            for (degrees, dtype), numel in longest.items()
            for needed in _partials_of(degrees, dtype, numel, topology)
        ),
        default=0,
    )


def _partials_of(
    degrees: Degrees, dtype: torch.dtype, numel: int, topology: Topology
) -> Iterator[int]:
    """What the reductions of a list need, over every kind of group of ranks."""
    chain = ShardChain(numel, degrees, topology.world)
    for outer, inner in ((Level.FULL, Level.ZERO2), (Level.ZERO2, Level.ZERO1)):
        for rank in _representatives(degrees.chunks(inner), degrees.chunks(outer), topology):
            yield reduce_scatter_workspace(
                counts=[numel // degrees.chunks(inner)],
                accumulator=dtype,
                group=chain.members(outer, inner, rank),
                topology=topology,
                chunk_bytes=CHUNK_BYTES,
            )
    for rank in range(min(degrees.zero1, topology.ranks_per_node)):
        yield all_reduce_workspace(
            numel=numel // degrees.zero1,
            accumulator=dtype,
            group=chain.replicas(Level.ZERO1, rank),
            topology=topology,
            chunk_align=ALIGN_BYTES // dtype.itemsize,
            chunk_bytes=CHUNK_BYTES,
        )


def _representatives(inner: int, outer: int, topology: Topology) -> Iterator[int]:
    """One rank of every group that lies differently on its nodes.

    Sets of `inner` ranks follow each other; a set begins at a place in its node that comes again
    after so many sets. Within a set, `outer` groups are interleaved.
    """
    per_node = topology.ranks_per_node
    sets = min(per_node // gcd(inner, per_node), topology.world // inner)
    for start in range(sets):
        for rank in range(min(outer, per_node)):
            yield start * inner + rank


_Entries = list[tuple[tuple[str, Field], int]]  # (atom, field) and its offset in the arena


def _extent(atom: AtomPlan, field: Field) -> tuple[int, torch.dtype]:
    """Elements and dtype of a field that has bytes of its own."""
    degrees = atom.degrees
    if field in (Field.WEIGHTS, Field.GRADIENTS):
        return atom.layout.numel, atom.weight_dtype
    if field is Field.SHARD:
        return atom.chunk_numel(degrees.zero3), atom.weight_dtype
    assert atom.main_dtype is not None
    degree = degrees.zero2 if field is Field.ACCUMULATOR else degrees.zero1
    return atom.chunk_numel(degree), atom.main_dtype


def _slot_arenas(groups: Sequence[GroupPlan]) -> Iterator[tuple[ArenaPlan, _Entries]]:
    """One arena per slot: groups lie over each other and take turns."""
    for field, members in (
        (Field.WEIGHTS, gathered_atoms),
        (Field.GRADIENTS, reduced_atoms),
    ):
        for slot in sorted({group.slot for group in groups}):
            entries: _Entries = []
            longest = 0
            for group in groups:
                if group.slot == slot:
                    own, nbytes = _stack(field, members(group))
                    entries += own
                    longest = max(longest, nbytes)
            if entries:
                yield ArenaPlan(f"{field}.slot{slot}", longest, shared=False), entries


def _whole_arenas(
    atoms: Sequence[AtomPlan], topology: Topology
) -> Iterator[tuple[ArenaPlan, _Entries]]:
    """Arenas in which every atom has its place for good."""
    aliased = [atom for atom in atoms if atom.form is WeightForm.ALIASED]
    copies = {atom.name: topology.ranks_per_node // atom.degrees.zero3 for atom in aliased}
    for name, field, members in (
        ("shared_weights", Field.WEIGHTS, aliased),
        ("weights", Field.WEIGHTS, [a for a in atoms if a.form is WeightForm.REPLICATED]),
        ("shards", Field.SHARD, [a for a in atoms if a.form is WeightForm.GATHERED]),
        ("main_weights", Field.MAIN_WEIGHT, [a for a in atoms if a.separate_main]),
        ("accumulators", Field.ACCUMULATOR, [a for a in atoms if a.trainable]),
        ("main_grads", Field.MAIN_GRAD, [a for a in atoms if a.separate_main_grad]),
    ):
        shared = members is aliased
        entries, nbytes = _stack(field, members, copies if shared else {})
        if entries:
            yield ArenaPlan(name, nbytes, shared), entries


def _stack(
    field: Field, atoms: Iterable[AtomPlan], copies: dict[str, int] | None = None
) -> tuple[_Entries, int]:
    """Offsets of a field of `atoms` placed one after another, and their total, in bytes."""
    entries: _Entries = []
    position = 0
    for atom in atoms:
        numel, dtype = _extent(atom, field)
        entries.append(((atom.name, field), position))
        position += align_bytes(numel * dtype.itemsize) * (copies or {}).get(atom.name, 1)
    return entries, position
