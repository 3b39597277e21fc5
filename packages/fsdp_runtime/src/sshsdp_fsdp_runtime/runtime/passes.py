"""Backward passes: which reduction happens when, in an order that is the same on every rank.

Each pass makes exactly one early reduction per group, in planned order, whatever the rank
computed; a rank contributes zeros for what it did not. Gradients that arrive after their group's
early reduction go to one closing reduction, for the groups that any rank reports as dirty when
the pass has ended. So rank-dependent branches, shared parameters and any order of backward are
right, and a rank that skips a backward is a named error instead of a wrong sum.

A backward that raises leaves in the gradients what it had computed, as in plain PyTorch. Its pass
ends with zeros for the rest, as soon as the rank uses the model again, so nobody hangs.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from sshsdp_fsdp_runtime.runtime.gradient_group import GradientGroup
from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle
from sshsdp_fsdp_runtime.runtime.tally import Tally, Turn
from sshsdp_fsdp_runtime.runtime.weights import WeightGroup


class Passes:
    """Order and bookkeeping of backward passes over all groups.

    Args:
        groups: in the order of reductions.
        weights: all groups of weights, dropped when a pass ends.
        tally: counts passes, and agrees on them.
        ordered: every reduction comes right before the next is announced, on every rank, as is
            needed between nodes; else each is made as soon as it would not wait.

    Attributes:
        groups: in the order of reductions.
        changed: called when main gradients change.
    """

    def __init__(
        self,
        groups: Sequence[GradientGroup],
        weights: Sequence[WeightGroup],
        tally: Tally,
        *,
        ordered: bool,
    ) -> None:
        self.groups = tuple(groups)
        self.changed: Callable[[], None] = lambda: None
        self.show_gradient: Callable[[ParameterHandle], Any] = lambda _handle: None
        self.drop_gradient: Callable[[ParameterHandle], None] = lambda _handle: None
        self._weights = tuple(weights)
        self._order = tuple(group for group in groups if group.reduces)
        self._next = 0
        self._pending: deque[GradientGroup] = deque()
        self._tally = tally
        self._ordered = ordered
        self._armed = False
        self._coming: Callable[[], Any] = lambda: None  # the end that autograd will call
        self._writing: ParameterHandle | None = None
        self._thread = 0  # that runs the pass

    @property
    def count(self) -> int:
        """Backward passes of this round, begun ones included."""
        return self._tally.count

    # Events of autograd

    def arm(self) -> None:
        """A backward pass has begun; have its end reported. Called inside backward, idempotent.

        Raises:
            RuntimeError: another thread is in a backward pass of this model.
        """
        if self._armed and self._coming() is not None:
            if self._thread != threading.get_ident():
                raise RuntimeError(
                    "expected one thread at a time to use a model, got a backward while another "
                    "thread is in one; let one thread train, or take turns with a lock"
                )
            return
        self.recover()
        self.settle()
        self._thread = threading.get_ident()
        end = partial(self._task_ends)
        self._begin()
        # The engine lets go of it where the backward raises, and then does not call it.
        self._coming = weakref.ref(end)
        torch.autograd.Variable._execution_engine.queue_callback(end)

    def recover(self) -> None:
        """End the last pass, if its backward raised half-way; no-op while it is running."""
        if not self._armed or self._coming() is not None:
            return
        if self._writing is not None:
            self._writing.written = False  # it may have raised in the middle of writing
        self._end()

    def claim(self, handle: ParameterHandle) -> tuple[torch.Tensor, bool]:
        """Where to write a gradient, and whether to overwrite (or to add).

        The caller writes the whole parameter when told to overwrite.
        """
        self.arm()
        group = handle.gradients
        assert group is not None
        assert handle.gradient is not None
        handle.used = True
        if not handle.buffers.atom.accumulates_in_place:
            if not group.opened and not group.issued:
                self._open(group)
            if group.issued:
                return group.claim_late(handle)
        first, handle.written = not handle.written, True
        if first:
            self._writing = handle
        return handle.gradient, first

    def complete(self, handle: ParameterHandle) -> None:
        """Autograd has nothing more for this parameter (so far)."""
        self.arm()
        self._writing = None
        group = handle.gradients
        assert group is not None
        group.see(handle)
        if not group.complete:
            return
        if handle.weights.releases:
            handle.weights.reshard()
        while self._next < len(self._order) and self._order[self._next].complete:
            self._issue_next()

    # Synchronization

    def settle(self) -> None:
        """Finish the pass that has ended before: agree on late gradients and reduce them."""
        if self._tally.voting:
            self._close(self._tally.collect(Turn.PASS))

    def join(self) -> int:
        """Take part, with zeros, in the passes that other ranks still make in this round.

        Returns:
            How many passes the round has.
        """
        self._check_ended()
        self.settle()
        while not self._tally.alone and self._tally.join():
            self._begin()
            self._end()
            self.settle()
        return self.count

    def drain(self) -> None:
        """Settle, and finish every reduction: main gradients hold all passes so far."""
        self._check_ended()
        self.settle()
        while self._pending:
            self._pending.popleft().reduce()

    def agree_on_use(self, handles: Sequence[ParameterHandle]) -> list[bool]:
        """Per parameter, whether any rank has a gradient for it. Collective.

        Raises:
            RuntimeError: ranks made different numbers of backward passes.
        """
        used = self._tally.finalize(sum(1 << handle.index for handle in handles if handle.used))
        return [bool(used >> handle.index & 1) for handle in handles]

    def begin_round(self) -> None:
        """Drop all gradients."""
        self.drain()
        self._tally.begin_round()
        for group in self.groups:
            group.begin_round()
        self.changed()

    # Internals

    def _check_ended(self) -> None:
        self.recover()
        if self._armed:
            raise RuntimeError(
                "expected the running backward to end first, got a request for finished gradients "
                "from inside it; call step(), clip or read p.grad after backward() has returned"
            )

    def _begin(self) -> None:
        self._armed = True
        self._tally.begin_pass()
        for group in self.groups:
            group.begin_pass()
        self.changed()

    def _task_ends(self) -> None:
        """Autograd has come to an end: of the pass, or of a backward inside one of its nodes.

        Reentrant checkpoints run such ones. Then the end of the one around it is waited for.
        """
        around = torch._C._current_autograd_node()
        if around is None:
            self._end()
            return
        end = self._coming()

        def after(*_gradients: Any) -> None:
            hook.remove()
            torch.autograd.Variable._execution_engine.queue_callback(end)

        hook = around.register_hook(after)

    def _end(self) -> None:
        self._armed = False
        self._writing = None
        while self._next < len(self._order):
            self._issue_next()
        self._next = 0
        dirty = sum(1 << index for index, group in enumerate(self._order) if group.dirty)
        for weights in self._weights:
            weights.reshard()
        if self._tally.alone:
            self._close(dirty)
        else:
            self._tally.post(Turn.PASS, dirty)

    def _close(self, dirty: int) -> None:
        """Reduce once more the groups that any rank reports, given as bits in planned order."""
        for index, group in enumerate(self._order):
            group.issued = False
            if dirty >> index & 1:
                self._open(group)
                group.restore_late()
                group.announce()
                self._pending.append(group)

    def _open(self, group: GradientGroup) -> None:
        """Give the group its slot, after whoever holds it.

        A holder whose turn in the order is before the group's is reduced now, complete so far.
        One whose turn is later can't be reduced yet: it hands the slot over, and what it has
        written arrives with the closing reduction.
        """
        occupant = group.slot.occupant
        if occupant is not None and occupant.opened:
            if occupant.index > group.index:
                occupant.hand_over(group)
                return
            while not occupant.issued:
                self._issue_next()
        while group.slot.occupant is not None:
            self._pending.popleft().reduce()
        group.open()

    def _issue_next(self) -> None:
        group = self._order[self._next]
        if not group.opened:
            self._open(group)
        while self._ordered and self._pending:
            self._pending.popleft().reduce()
        group.announce()
        group.issued = True
        self._next += 1
        self._pending.append(group)
        while not self._ordered and self._pending and self._pending[0].can_reduce():
            self._pending.popleft().reduce()
