"""Operations made executable: addresses resolved, slices made, counters found."""

from collections.abc import Sequence

import torch

from sshsdp_zerosm.board import GENERATION, Board
from sshsdp_zerosm.channels import Cursor
from sshsdp_zerosm.counters import Counters
from sshsdp_zerosm.reduction import Reduction
from sshsdp_zerosm.waiter import Waiter


class Step:
    """One operation of one rank."""

    __slots__ = ()

    def run(self, accumulate: bool) -> None:
        """Execute it, blocking where it has to wait."""
        raise NotImplementedError

    def missing(self, ahead: int) -> str | None:
        """Who is waited for and what was seen, or None if it would not block.

        Args:
            ahead: how many unexecuted waits for the same counter come before it.
        """
        del ahead
        return None

    def tally(self, counters: Counters) -> None:
        """Add what one execution counts for."""


class CopyStep(Step):
    """Pull or Put."""

    __slots__ = ("_moved", "_pull", "_source", "_target")

    def __init__(
        self, source: torch.Tensor, target: torch.Tensor, moved: tuple[int, int], *, pull: bool
    ) -> None:
        self._moved = moved
        self._source = source
        self._target = target
        self._pull = pull

    def run(self, accumulate: bool) -> None:
        """Copy the bytes."""
        del accumulate
        self._target.copy_(self._source)

    def tally(self, counters: Counters) -> None:
        """Add the bytes."""
        if self._pull:
            counters.pulled_bytes += self._source.nbytes
        else:
            counters.put_bytes += self._source.nbytes
        _add_moved(counters, self._moved)


class FenceStep(Step):
    """Fence where a Put is complete when it returns."""

    __slots__ = ()

    def run(self, accumulate: bool) -> None:
        """Nothing is under way."""
        del accumulate


class ReduceStep(Step):
    """Reduce."""

    __slots__ = ("_moved", "_nbytes", "run")

    def __init__(
        self, reduction: Reduction, nbytes: int, moved: tuple[int, int], *, overwrite: bool = False
    ) -> None:
        self._nbytes = nbytes
        self._moved = moved
        run = reduction.overwrite if overwrite else reduction.run
        self.run = run  # type: ignore[method-assign]  # saves a call per execution

    def tally(self, counters: Counters) -> None:
        """Add the source bytes."""
        counters.reduced_bytes += self._nbytes
        _add_moved(counters, self._moved)


class SignalStep(Step):
    """Signal."""

    __slots__ = ("_to", "_waiter", "_word", "_words")

    def __init__(self, own: Board, word: int, to: tuple[int, ...], waiter: Waiter) -> None:
        self._words = own.words
        self._word = word
        self._to = to
        self._waiter = waiter

    def run(self, accumulate: bool) -> None:
        """Raise the own counter and wake who sleeps."""
        del accumulate
        self._words[self._word] += 1
        self._waiter.wake(self._word, self._to)

    def tally(self, counters: Counters) -> None:
        """Add one signal."""
        counters.signals += 1


class WaitStep(Step):
    """Wait."""

    __slots__ = ("_credit", "_waiter", "_words", "cursor")

    def __init__(self, cursor: Cursor, credit: int, source: Board, waiter: Waiter) -> None:
        self.cursor = cursor
        self._credit = credit
        self._words = source.words
        self._waiter = waiter

    def run(self, accumulate: bool) -> None:
        """Return when one more count is there, and consume it."""
        del accumulate
        cursor = self.cursor
        count = cursor.count + 1
        need = count - self._credit
        if self._words[cursor.word] < need:
            self._waiter.wait(cursor.source, cursor.word, need, cursor.channel)
        cursor.count = count
        if not cursor.verified:
            cursor.verify()

    def missing(self, ahead: int) -> str | None:
        """See Step.missing."""
        cursor = self.cursor
        need = cursor.count + 1 + ahead - self._credit
        seen = self._words[cursor.word]
        if seen >= need:
            return None
        return f"rank {cursor.source}, channel {cursor.channel!r}: expected {need}, got {seen}"

    def tally(self, counters: Counters) -> None:
        """Add one wait."""
        counters.waits += 1


class GenerationStep(Step):
    """WaitGeneration."""

    __slots__ = ("_own", "_source", "_waiter", "_words")

    def __init__(self, own: Board, source: int, boards: Sequence[Board], waiter: Waiter) -> None:
        self._own = own.words
        self._source = source
        self._words = boards[source].words
        self._waiter = waiter

    def run(self, accumulate: bool) -> None:
        """Return when the source is at the own generation."""
        del accumulate
        need = self._own[GENERATION]
        if self._words[GENERATION] < need:
            self._waiter.wait(self._source, GENERATION, need, "generation")

    def missing(self, ahead: int) -> str | None:
        """See Step.missing."""
        del ahead
        need, seen = self._own[GENERATION], self._words[GENERATION]
        if seen >= need:
            return None
        return f"rank {self._source}, channel 'generation': expected {need}, got {seen}"

    def tally(self, counters: Counters) -> None:
        """Add one wait."""
        counters.waits += 1


def _add_moved(counters: Counters, moved: tuple[int, int]) -> None:
    within, between = moved
    counters.within_bytes += within
    counters.between_bytes += between
