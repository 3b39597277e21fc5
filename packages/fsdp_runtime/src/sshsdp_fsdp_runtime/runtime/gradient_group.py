"""Gradients of one runtime group: one buffer lifetime from the first write to the reduction."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from sshsdp_fsdp_runtime.plan import GroupPlan
from sshsdp_fsdp_runtime.runtime.labelled_program import LabelledProgram

if TYPE_CHECKING:
    from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle


class GradientSlot:
    """A buffer that groups take turns with for the gradients of one microbatch."""

    def __init__(self) -> None:
        self.occupant: GradientGroup | None = None


class GradientGroup:
    """The part of a group whose gradients pass through a slot and are reduced from there.

    Attributes:
        plan: the group.
        index: position in the order of reductions.
        slot: the buffer it uses.
        reduced: parameters whose g' lies in the slot.
        in_place: parameters whose g' is the main gradient itself.
        opened: whether the slot is this group's, for writing.
        issued: whether this pass's early reduction was announced.
        accumulated: whether the main gradients hold contributions of this round.
        seen: parameters whose gradient is complete so far in this pass, as bits.
    """

    def __init__(
        self,
        plan: GroupPlan,
        index: int,
        slot: GradientSlot,
        program: LabelledProgram | None,
        *,
        poison: bool,
    ) -> None:
        self.plan = plan
        self.index = index
        self.slot = slot
        self.reduced: list[ParameterHandle] = []
        self.in_place: list[ParameterHandle] = []
        self.opened = False
        self.issued = False
        self.accumulated = False
        self.seen = 0
        self._expected = 0
        self._bits: dict[int, int] = {}
        self._program = program
        self._poison = poison
        self._late: dict[int, torch.Tensor] = {}

    def adopt(self, handles: Sequence["ParameterHandle"]) -> None:
        """Take the trainable parameters of the group."""
        for bit, handle in enumerate(handles):
            in_place = handle.buffers.atom.accumulates_in_place
            (self.in_place if in_place else self.reduced).append(handle)
            self._bits[handle.index] = 1 << bit
            handle.gradients = self
            assert handle.buffers.gradients is not None
            handle.gradient = handle.buffers.gradients.member(handle.spec.name).tensor
        self._expected = (1 << len(handles)) - 1

    @property
    def reduces(self) -> bool:
        """Whether the group takes part in reductions."""
        return self._program is not None

    def begin_pass(self) -> None:
        """Nothing is seen yet; what has been frozen since the plan was made is not waited for."""
        with torch._C.DisableTorchFunctionSubclass():
            handles = (*self.reduced, *self.in_place)
            frozen = [h.index for h in handles if not h.parameter.requires_grad]
        self.seen = sum(self._bits[index] for index in frozen)

    def see(self, handle: "ParameterHandle") -> None:
        """Note that a parameter's gradient is complete so far."""
        self.seen |= self._bits[handle.index]

    @property
    def complete(self) -> bool:
        """Whether every gradient of the group is complete so far in this pass."""
        return self.seen == self._expected

    def open(self) -> None:
        """Begin a lifetime of the slot, once all ranks have read what it held before."""
        assert self._program is not None
        assert self.slot.occupant is None
        self._program.run("acquire")
        self._begin_lifetime()

    def hand_over(self, group: "GradientGroup") -> None:
        """Give the slot to `group` unreduced; what was written becomes late."""
        for handle in self.reduced:
            if handle.written:
                assert handle.gradient is not None
                late, first = self.claim_late(handle)
                if first:
                    late.copy_(handle.gradient)
                else:
                    late.add_(handle.gradient)
        self.opened = False
        group._begin_lifetime()

    def _begin_lifetime(self) -> None:
        self.slot.occupant = self
        self.opened = True
        for handle in self.reduced:
            handle.written = False
        if self._poison:
            self._fill(0xFF)

    def announce(self) -> None:
        """Everything written so far may be reduced; what was not written counts as zero."""
        assert self._program is not None
        for handle in self.reduced:
            if not handle.written:
                assert handle.gradient is not None
                handle.gradient.zero_()
        self._program.run("ready")
        self.opened = False

    def can_reduce(self) -> bool:
        """Whether the reduction would not wait for a peer."""
        assert self._program is not None
        return self._program.ready("reduce")

    def reduce(self) -> None:
        """Sum this rank's chunk over all ranks into the main gradients and free the slot."""
        assert self._program is not None
        self._program.run("reduce", accumulate=self.accumulated)
        self.accumulated = True
        self.slot.occupant = None

    def claim_late(self, handle: "ParameterHandle") -> tuple[torch.Tensor, bool]:
        """Where to add a gradient that arrives after the group's reduction of this pass.

        Memory is taken on demand: the case is rare and conditional in the plan.
        """
        late = self._late.get(handle.index)
        if late is not None:
            return late, False
        assert handle.gradient is not None
        late = self._late[handle.index] = torch.empty_like(handle.gradient)
        return late, True

    @property
    def dirty(self) -> bool:
        """Whether gradients arrived after the reduction of this pass."""
        return bool(self._late)

    def restore_late(self) -> None:
        """Move late gradients into the opened slot."""
        for handle in self.reduced:
            late = self._late.get(handle.index)
            if late is not None:
                assert handle.gradient is not None
                handle.gradient.copy_(late)
                handle.written = True
        self._late.clear()

    def begin_round(self) -> None:
        """Drop accumulated gradients: the next contribution overwrites them."""
        self.accumulated = False
        for handle in (*self.reduced, *self.in_place):
            handle.used = False
        for handle in self.in_place:
            handle.written = False

    def _fill(self, byte: int) -> None:
        lists = {id(h.buffers): h.buffers.gradients for h in self.reduced}
        for gradients in lists.values():
            assert gradients is not None
            gradients.tensor.view(torch.uint8).fill_(byte)
