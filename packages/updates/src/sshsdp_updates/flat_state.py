"""A list with its optimizer state: flat tensors beside the main weights."""

from collections.abc import Callable
from itertools import accumulate

import torch
from torch import Tensor

from sshsdp_shardchain import Fragment, Level
from sshsdp_updates.rule import StateField
from sshsdp_updates.staged_fields import grid_of
from sshsdp_updates.unit import ELEMENT, ROW, TENSOR
from sshsdp_updates.update_list import UpdateList

Allocate = Callable[[int, torch.dtype, str], Tensor]
"""(number of elements, dtype, name for messages) -> 1-D tensor whose contents don't matter."""


class FlatState:
    """The fields of one list, by name.

    Attributes:
        source: the list.
        tensors: ``main_weight``, ``main_grad`` and every state field of the rule; 1-D. Those per
            element have equally many elements and are addressed by the members' local offsets,
            those per row hold the rows of all members, one member after another, and those per
            tensor one value per member.
        row_offsets: of the members in tensors per row, and the end; all 0 if there are none.
        steps: float32 on the CPU, one count of finished updates per member.
    """

    def __init__(self, source: UpdateList, allocate: Allocate | None) -> None:
        """Allocate state for `source`, with the initial values of its fields.

        Raises:
            ValueError: `allocate` returned something else than it was asked for.
        """
        self.source = source
        self.fragments = tuple(member.fragment for member in source.members)
        self.tensors = {"main_weight": source.main_weight, "main_grad": source.main_grad}
        fields = source.rule.state_fields()
        self._per_row = {field.name for field in fields if field.unit == ROW}
        self._per_tensor = {field.name for field in fields if field.unit == TENSOR}
        self.row_offsets = _row_offsets(source, bool(self._per_row))
        for field in fields:
            numel = {
                ELEMENT: source.main_weight.numel(),
                ROW: self.row_offsets[-1],
                TENSOR: len(source.members),
            }[field.unit]
            self.tensors[field.name] = _allocated(source, field, numel, allocate)
        self.steps = torch.zeros(len(source.members), dtype=torch.float32)

    def shape(self, field: str, index: int) -> tuple[int, ...]:
        """Return the shape of the whole `field` of member `index`."""
        if field in self._per_tensor:
            return ()
        if field in self._per_row:
            return (self.fragment(field, index).numel,)
        return self.source.members[index].shape

    def is_replicated(self, field: str) -> bool:
        """Tell whether every rank has all of a state field."""
        return field in self._per_row or field in self._per_tensor

    def fragment(self, field: str, index: int) -> Fragment:
        """Return which elements of `field` of member `index` this rank has."""
        if field in self._per_tensor:
            start, stop = index, index + 1
        elif field in self._per_row:
            start, stop = self.row_offsets[index : index + 2]
        else:
            return self.fragments[index]
        name, rank = self.source.members[index].name, self.fragments[index].rank
        return Fragment(name, Level.ZERO1, rank, 0, stop - start, start, start)

    def fragment_of(self, field: str, index: int) -> Tensor:
        """Return member `index`'s piece of `field`, a 1-D view, empty if its fragment is."""
        fragment = self.fragment(field, index)
        return self.tensors[field][fragment.local_offset : fragment.local_offset + fragment.numel]

    def value_of(self, field: str, index: int) -> Tensor:
        """Return the same, but a field per tensor as 0-d."""
        piece = self.fragment_of(field, index)
        return piece[0] if field in self._per_tensor else piece

    def member_state(self, index: int) -> dict[str, Tensor]:
        """Return views of all that is kept for member `index`: ``step`` (0-d) and every field."""
        state = {"step": self.steps[index]}
        for field in self.source.rule.state_fields():
            state[field.name] = self.value_of(field.name, index)
        return state


def _row_offsets(source: UpdateList, per_row: bool) -> tuple[int, ...]:
    rows = [
        grid_of(source.rule, member.name, member.shape, member.unit).rows if per_row else 0
        for member in source.members
    ]
    return tuple(accumulate(rows, initial=0))


def _allocated(
    source: UpdateList, field: StateField, numel: int, allocate: Allocate | None
) -> Tensor:
    dtype = field.dtype or source.main_weight.dtype
    device = source.main_weight.device
    if allocate is None:
        return torch.full((numel,), field.initial, dtype=dtype, device=device)
    name = f"{source.name}.{field.name}"
    tensor = allocate(numel, dtype, name)
    if (tuple(tensor.shape), tensor.dtype, tensor.device) != ((numel,), dtype, device):
        raise ValueError(
            f"state {name!r}: expected allocate() to return shape ({numel},) of {dtype} on "
            f"{device}, got {tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}"
        )
    return tensor.fill_(field.initial)
