"""Backward passes: which reduction happens when, in an order that is the same on every rank.

Each pass makes exactly one early reduction per group, in planned order, whatever the rank
computed; a rank contributes zeros for what it did not. Gradients that arrive after their group's
early reduction go to one closing reduction, for the groups that any rank reports as dirty when
the pass has ended. So rank-dependent branches, shared parameters and any order of backward are
right, and a rank that skips a backward is a named error instead of a wrong sum.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from sshsdp_fsdp_runtime.runtime.ballot import Ballot, Vote
from sshsdp_fsdp_runtime.runtime.gradient_group import GradientGroup
from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle

PASS, FINALIZE = 1, 2  # kinds of votes


class Passes:
    """Order and bookkeeping of backward passes over all groups.

    Args:
        groups: in the order of reductions.
        ballot: how ranks agree; None in a world of one.
        abort: tells all ranks that this one can't go on.
        ordered: every reduction comes at the same place among all communication on every rank,
            as is needed between nodes; else each is made as soon as it would not wait.

    Attributes:
        groups: in the order of reductions.
        count: backward passes of this round, begun ones included.
        changed: called when main gradients change.
    """

    def __init__(
        self,
        groups: Sequence[GradientGroup],
        ballot: Ballot | None,
        abort: Callable[[str], None],
        *,
        ordered: bool,
    ) -> None:
        self.groups = tuple(groups)
        self.count = 0
        self.changed: Callable[[], None] = lambda: None
        self.show_gradient: Callable[[ParameterHandle], Any] = lambda _handle: None
        self.drop_gradient: Callable[[ParameterHandle], None] = lambda _handle: None
        self._order = tuple(group for group in groups if group.reduces)
        self._next = 0
        self._pending: deque[GradientGroup] = deque()
        self._ballot = ballot
        self._abort = abort
        self._ordered = ordered
        self._armed = False
        self._total = 0

    # Events of autograd

    def arm(self) -> None:
        """A backward pass has begun; have its end reported. Called inside backward, idempotent."""
        if self._armed:
            return
        self.settle()
        self._armed = True
        self.count += 1
        self._total += 1
        if self._ballot is not None:
            self._ballot.show(self._total)
        self.changed()
        torch.autograd.Variable._execution_engine.queue_callback(self._end)

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
        return handle.gradient, first

    def complete(self, handle: ParameterHandle) -> None:
        """Autograd has nothing more for this parameter (so far)."""
        self.arm()
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
        if self._ballot is None or not self._ballot.open:
            return
        self._close(self._collect(PASS))

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
        used = sum(1 << handle.index for handle in handles if handle.used)
        if self._ballot is not None:
            self._post(FINALIZE, used)
            ahead = [total for total in self._ballot.shown_by_absent() if total > self._total]
            if ahead:
                # A rank that is ahead may wait for this one's gradients: it must hear of it.
                raise self._uneven([self._total, *ahead])
            used = self._collect(FINALIZE)
        return [bool(used >> handle.index & 1) for handle in handles]

    def begin_round(self) -> None:
        """Drop all gradients."""
        self.drain()
        self.count = 0
        for group in self.groups:
            group.begin_round()
        self.changed()

    def check_idle(self) -> None:
        """Called when a forward begins outside of any backward.

        Raises:
            RuntimeError: the last backward raised half-way, so that ranks may disagree.
        """
        if self._armed and torch._C._current_graph_task_id() == -1:
            raise RuntimeError(
                "expected the last backward to finish, got one that raised: gradients of this "
                "round are incomplete and ranks may disagree; rebuild the model and load a "
                "checkpoint"
            )

    # Internals

    def _check_ended(self) -> None:
        if self._armed:
            raise RuntimeError(
                "expected the running backward to end first, got a request for finished gradients "
                "from inside it; call step(), clip or read p.grad after backward() has returned"
            )

    def _end(self) -> None:
        self._armed = False
        while self._next < len(self._order):
            self._issue_next()
        self._next = 0
        dirty = sum(1 << index for index, group in enumerate(self._order) if group.dirty)
        for group in self.groups:
            group.seen = 0
            for handle in (*group.reduced, *group.in_place):
                handle.weights.reshard()
        if self._ballot is None:
            self._close(dirty)
        else:
            self._post(PASS, dirty)

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
        group.announce()
        group.issued = True
        self._next += 1
        self._pending.append(group)
        while len(self._pending) > 1 if self._ordered else self._first_is_ready():
            self._pending.popleft().reduce()

    def _first_is_ready(self) -> bool:
        return bool(self._pending) and self._pending[0].can_reduce()

    def _post(self, kind: int, bits: int) -> None:
        assert self._ballot is not None
        self._ballot.post(Vote((kind, kind), (self._total, self._total), bits))

    def _collect(self, kind: int) -> int:
        """The bits that any rank has set in a turn of this kind."""
        assert self._ballot is not None
        vote = self._ballot.collect()
        if vote.kinds != (kind, kind) or vote.totals[0] != vote.totals[1]:
            raise self._uneven(vote.totals)
        return vote.bits

    def _uneven(self, totals: Sequence[int]) -> RuntimeError:
        text = (
            "expected every rank to call backward equally often before gradients are used, got "
            f"{sorted(set(totals))} backward passes on different ranks; give every rank as many "
            "microbatches"
        )
        self._abort(text)
        return RuntimeError(text)
