"""Extents of the buffers that groups take turns with, and offsets inside them, in bytes."""

from collections.abc import Iterable, Sequence
from math import prod

from sshsdp_fsdp_runtime.plan.atom import ALIGN_BYTES, AtomPlan, WeightForm
from sshsdp_fsdp_runtime.plan.group import GroupPlan
from sshsdp_fsdp_runtime.plan.model_spec import ModelSpec

STAGING_LIMIT = 4 * 2**20  # bytes; large enough to amortize a barrier, small beside any model


def align_bytes(nbytes: int) -> int:
    """Round up to a multiple of `ALIGN_BYTES`."""
    return -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES


def list_bytes(atom: AtomPlan) -> int:
    """Bytes of the atom's whole list of w, which is also that of g'."""
    return atom.layout.numel * atom.weight_dtype.itemsize


def stack(sizes: Iterable[int]) -> tuple[tuple[int, ...], int]:
    """Offsets of buffers of `sizes` placed one after another, and their total, in bytes."""
    offsets = []
    position = 0
    for size in sizes:
        offsets.append(position)
        position = align_bytes(position + size)
    return tuple(offsets), position


def reduced_atoms(group: GroupPlan) -> tuple[AtomPlan, ...]:
    """The group's atoms whose gradients pass through a slot and are reduced from there."""
    return tuple(a for a in group.atoms if a.trainable and not a.accumulates_in_place)


def gathered_atoms(group: GroupPlan) -> tuple[AtomPlan, ...]:
    """The group's atoms whose full weights live in a slot while they are resident."""
    return tuple(a for a in group.atoms if a.form is WeightForm.GATHERED)


def gradient_slot_bytes(groups: Sequence[GroupPlan]) -> dict[int, int]:
    """Bytes of every gradient slot: those of the largest group that uses it."""
    return _slot_bytes((g.slot, stack(map(list_bytes, reduced_atoms(g)))[1]) for g in groups)


def weight_slot_bytes(groups: Sequence[GroupPlan]) -> dict[int, int]:
    """Bytes of every weight slot: those of the largest group that uses it."""
    return _slot_bytes((g.slot, stack(map(list_bytes, gathered_atoms(g)))[1]) for g in groups)


def _slot_bytes(needs: Iterable[tuple[int, int]]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for slot, nbytes in needs:
        sizes[slot] = max(sizes.get(slot, 0), nbytes)
    return dict(sorted(sizes.items()))


def staging_bytes(spec: ModelSpec, world: int) -> int:
    """Bytes of the shared buffer through which rank 0's initial values reach the others."""
    if world == 1:
        return 0
    sizes = [p.numel * p.dtype.itemsize for p in spec.parameters]
    sizes += [prod(shape) * dtype.itemsize for _, shape, dtype in spec.buffers]
    return align_bytes(min(max(sizes, default=0), STAGING_LIMIT))
