"""A list with its optimizer state: flat tensors beside the main weights."""

from collections.abc import Callable

import torch
from torch import Tensor

from sshsdp_updates.update_list import UpdateList

Allocate = Callable[[int, torch.dtype, str], Tensor]
"""(number of elements, dtype, name for messages) -> 1-D tensor whose contents don't matter."""


class FlatState:
    """The fields of one list, by name, all addressed by the members' local offsets.

    Attributes:
        source: the list.
        tensors: ``main_weight``, ``main_grad`` and every state field of the rule; 1-D, equally
            many elements.
        steps: float32 on the CPU, one count of finished updates per member.
    """

    def __init__(self, source: UpdateList, allocate: Allocate | None) -> None:
        """Allocate state for `source`, zero everywhere.

        Raises:
            ValueError: `allocate` returned something else than it was asked for.
        """
        self.source = source
        self.fragments = tuple(member.fragment for member in source.members)
        self.tensors = {"main_weight": source.main_weight, "main_grad": source.main_grad}
        for field in source.rule.state_fields():
            dtype = field.dtype or source.main_weight.dtype
            name = f"{source.name}.{field.name}"
            self.tensors[field.name] = _zeros(source.main_weight, dtype, name, allocate)
        self.steps = torch.zeros(len(source.members), dtype=torch.float32)

    def fragment_of(self, field: str, index: int) -> Tensor:
        """Return member `index`'s piece of `field`, a 1-D view, empty if its fragment is."""
        fragment = self.fragments[index]
        return self.tensors[field][fragment.local_offset : fragment.local_offset + fragment.numel]

    def member_state(self, index: int) -> dict[str, Tensor]:
        """Return views of all that is kept for member `index`: ``step`` (0-d) and every field."""
        state = {"step": self.steps[index]}
        for field in self.source.rule.state_fields():
            state[field.name] = self.fragment_of(field.name, index)
        return state


def _zeros(like: Tensor, dtype: torch.dtype, name: str, allocate: Allocate | None) -> Tensor:
    if allocate is None:
        return torch.zeros(like.numel(), dtype=dtype, device=like.device)
    tensor = allocate(like.numel(), dtype, name)
    if (tuple(tensor.shape), tensor.dtype, tensor.device) != ((like.numel(),), dtype, like.device):
        raise ValueError(
            f"state {name!r}: expected allocate() to return shape ({like.numel()},) of {dtype} on "
            f"{like.device}, got {tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}"
        )
    return tensor.zero_()
