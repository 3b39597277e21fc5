"""One line of advice from the numbers."""

import math
from collections.abc import Sequence

from sshsdp_mxfp.explain.loss import Loss
from sshsdp_mxfp.explain.names import name_of
from sshsdp_mxfp.explain.shares import share
from sshsdp_mxfp.explain.summary import Summary

NEAR = 1.0  # dB from the best that hardly matter
FEW = 1e-3  # of all elements: more of them vanishing than elsewhere does


def choose(losses: Sequence[Loss]) -> Loss:
    """The format with the fewest stored bits among those that lose hardly more than the best.

    Hardly more: within `NEAR` of the best signal to noise, and of all elements at most `FEW` more
    vanish than in the best of those. Ties go to the better signal to noise, to 0.1 dB, then to the
    first.

    Args:
        losses: of one tensor, at least one.
    """
    near = _near(losses)
    fewest = min(loss.vanished for loss in near)
    kept = [loss for loss in near if loss.vanished - fewest <= FEW * loss.numel]
    return min(kept, key=_order)


def advise(summary: Summary, losses: Sequence[Loss]) -> str:
    """What to take, why, and what to look at first.

    Args:
        summary: of the tensor.
        losses: of the formats that were measured, at least one.
    """
    wrong = [
        f"{count:,} {what}"
        for count, what in ((summary.nans, "NaN"), (summary.infinities, "infinite"))
        if count
    ]
    first = (
        f"{' and '.join(wrong)} elements spoil their blocks: look there first. " if wrong else ""
    )
    if not summary.largest:
        return f"{first}Nothing {'else ' * bool(wrong)}but zeros, which every format keeps."
    taken = choose(losses)
    return f"{first}Take {name_of(taken.format)}: {_why(taken, losses)}{_directions(taken)}"


def _why(taken: Loss, losses: Sequence[Loss]) -> str:
    own = f"{_decibels(taken)} with {taken.bits:.2f} stored bits per element"
    smaller = [loss for loss in _near(losses) if _order(loss) < _order(taken)]
    if smaller:  # passed over for what vanishes
        other = min(smaller, key=_order)
        gone, kept = (share(loss.vanished / loss.numel) for loss in (other, taken))
        return (
            f"{own}; {name_of(other.format)} turns {gone} of all elements into 0, this one {kept}"
        )
    best = max(losses, key=lambda loss: round(loss.decibels, 1))
    if best is taken:
        return f"{own}, the best of those measured"
    if _decibels(best) == _decibels(taken):
        return f"{own}, as {name_of(best.format)} with {best.bits:.2f}"
    return f"{own}, hardly less than {name_of(best.format)} ({_decibels(best)})"


def _near(losses: Sequence[Loss]) -> list[Loss]:
    best = max(loss.decibels for loss in losses)
    return [loss for loss in losses if loss.decibels >= best - NEAR]


def _order(loss: Loss) -> tuple[float, float]:
    return loss.bits, -round(loss.decibels, 1)


def _directions(taken: Loss) -> str:
    rows, columns = taken.format.block
    if rows == columns:
        return "; the same bytes serve the transposed tensor."
    if rows == 1:
        return "; a product with the transposed tensor needs blocks of the other direction too."
    return "."


def _decibels(loss: Loss) -> str:
    return "no loss" if math.isinf(loss.decibels) else f"{loss.decibels:.1f} dB"
