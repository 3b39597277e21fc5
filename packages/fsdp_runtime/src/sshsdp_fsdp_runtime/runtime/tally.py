"""How many backward passes every rank has begun, and what the ranks tell each other of them."""

from collections.abc import Callable, Iterable
from enum import IntEnum

from sshsdp_fsdp_runtime.runtime.ballot import Ballot, Vote

_ROUND = 1 << 32  # rounds are counted together with passes, in the upper half of one number


class Turn(IntEnum):
    """What a rank does in a turn of the ballot."""

    PASS = 1
    JOIN = 2
    FINALIZE = 3


class Tally:
    """Counts passes and rounds, and compares them with those of the other ranks.

    Args:
        ballot: how ranks agree; None in a world of one.
        abort: tells all ranks that this one can't go on.
    """

    def __init__(self, ballot: Ballot | None, abort: Callable[[str], None]) -> None:
        self._ballot = ballot
        self._abort = abort
        self._total = 0

    @property
    def count(self) -> int:
        """Backward passes of this round, begun ones included."""
        return self._total % _ROUND

    @property
    def alone(self) -> bool:
        """Whether there is nobody to agree with."""
        return self._ballot is None

    @property
    def voting(self) -> bool:
        """Whether a vote was posted and not collected."""
        return self._ballot is not None and self._ballot.posted

    def begin_pass(self) -> None:
        """Count a pass, and let the others know that it has begun."""
        self._total += 1
        if self._ballot is not None and not self._ballot.opened:
            self._ballot.open(Turn.PASS, self._total)

    def begin_round(self) -> None:
        """Forget the passes of this round; rounds without one don't count."""
        if self.count:
            self._total = (self._total // _ROUND + 1) * _ROUND

    def post(self, turn: Turn, bits: int) -> None:
        """Say something about a turn that is open; never waits."""
        assert self._ballot is not None
        self._ballot.post(Vote((turn, turn), (self._total, self._total), bits))

    def collect(self, turn: Turn) -> int:
        """The bits that any rank has set in a turn of this kind."""
        assert self._ballot is not None
        vote = self._ballot.collect()
        if vote.kinds != (turn, turn) or vote.totals[0] != vote.totals[1]:
            raise self._differing(vote.kinds, vote.totals)
        return vote.bits

    def finalize(self, bits: int) -> int:
        """The bits that any rank has set, when all of them finalize gradients. Collective.

        Raises:
            RuntimeError: ranks made different numbers of backward passes.
        """
        if self._ballot is None:
            return bits
        self._ballot.open(Turn.FINALIZE, self._total)
        kinds, totals = zip(*self._ballot.openings(), strict=True)
        if set(kinds) != {Turn.FINALIZE}:
            # A rank in a pass may wait for this one's gradients: it must hear of it.
            raise self._differing(kinds, totals)
        self.post(Turn.FINALIZE, bits)
        return self.collect(Turn.FINALIZE)

    def join(self) -> bool:
        """Wait for what the others do next; whether some make a pass, in which this rank is due.

        Raises:
            RuntimeError: others have finished the round without join().
        """
        assert self._ballot is not None
        self._ballot.open(Turn.JOIN, self._total)
        kinds, totals = zip(*self._ballot.openings(), strict=True)
        if Turn.FINALIZE in kinds:
            raise self._differing(kinds, totals)
        if Turn.PASS in kinds:
            return True
        self.post(Turn.JOIN, 0)
        self.collect(Turn.JOIN)
        return False

    def _differing(self, kinds: Iterable[int], totals: Iterable[int]) -> RuntimeError:
        rounds = {total // _ROUND for total in totals}
        if len(rounds) > 1:
            text = (
                "expected every rank to drop gradients equally often, got some that called "
                "zero_grad() after a backward and others that did not; call it on every rank"
            )
        elif Turn.JOIN in kinds:
            text = (
                "expected every rank to call join() before gradients are used, got some that did "
                "not; call it on every rank, after its last backward of the round"
            )
        else:
            counts = sorted({total % _ROUND for total in totals})
            text = (
                "expected every rank to call backward equally often before gradients are used, got "
                f"{counts} backward passes on different ranks; give every rank as many "
                "microbatches, or call model.join() on every rank before the step"
            )
        self._abort(text)
        return RuntimeError(text)
