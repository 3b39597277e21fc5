"""The numbers as tables for a terminal."""

import math
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sshsdp_mxfp.explain import histogram
from sshsdp_mxfp.explain.advice import advise, choose
from sshsdp_mxfp.explain.loss import Loss
from sshsdp_mxfp.explain.names import name_of
from sshsdp_mxfp.explain.shares import share
from sshsdp_mxfp.explain.summary import Summary

LEGEND = (
    "bits: stored per element, scales included. error: root mean square, relative to that of the "
    "elements; SNR is the same in dB. worst: the largest error of an element, relative to the "
    "largest magnitude of its block. saturated, to zero, subnormal: shares of all elements that "
    "are beyond the largest value, vanish, or keep fewer bits of precision. Scales are powers of "
    "two, one per block."
)


def report(title: str, summary: Summary, losses: Sequence[Loss]) -> RenderableType:
    """All there is to show.

    Args:
        title: of the tensor.
        summary: of the tensor.
        losses: at least one.
    """
    return Group(
        Text(headline(title, summary)),
        _losses(losses),
        _scales(losses),
        Text(LEGEND + _edges(losses), style="dim"),
        Text(),
        Text(advise(summary, losses), style="bold"),
    )


def headline(title: str, summary: Summary) -> str:
    """The tensor in two lines."""
    sizes = "x".join(map(str, summary.shape))
    kind = str(summary.dtype).removeprefix("torch.")
    counts = "".join(
        f", {count:,} {what}"
        for count, what in (
            (summary.zeros, "zero"),
            (summary.infinities, "infinite"),
            (summary.nans, "NaN"),
        )
        if count
    )
    return (
        f"{title}: {sizes} {kind}, {summary.numel:,} elements{counts}\n"
        f"magnitudes {summary.smallest:.3g} to {summary.largest:.3g}, {summary.binades:.0f} powers "
        f"of two"
    )


def _edges(losses: Sequence[Loss]) -> str:
    """What to know where blocks don't fit the sizes: they store more bits than whole ones."""
    if all(loss.bits == loss.format.bits_per_element for loss in losses):
        return ""
    return (
        " Sizes are no multiples of the blocks: those at the edges are smaller, for which quantize "
        'wants ragged="partial".'
    )


def _losses(losses: Sequence[Loss]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("format", no_wrap=True)
    for name in ("bits", "error", "SNR", "worst", "saturated", "to zero", "subnormal"):
        table.add_column(name, justify="right", no_wrap=True)
    taken = choose(losses)
    for loss in losses:
        table.add_row(
            name_of(loss.format),
            f"{loss.bits:.2f}",
            share(loss.rms),
            "inf" if math.isinf(loss.decibels) else f"{loss.decibels:.1f}",
            share(loss.worst),
            *(share(n / loss.numel) for n in (loss.saturated, loss.vanished, loss.subnormal)),
            style="bold" if loss is taken else "",
        )
    return table


def _scales(losses: Sequence[Loss]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("scales of", "blocks at each power of two", "most blocks"):
        table.add_column(name, no_wrap=True)
    for loss in losses:
        codes, total = histogram.used(loss.scales), sum(loss.scales)
        low, high = (_power(codes[0]), _power(codes[-1])) if codes else ("", "")
        most = histogram.most(loss.scales)
        rest = [
            f"{share(loss.scales[code] / total)} {what}"
            for code, what in ((histogram.LOWEST, _power(0)), (histogram.NAN, "NaN"))
            if loss.scales[code] and code != most
        ]
        table.add_row(
            name_of(loss.format),
            f"{low} {histogram.bars(loss.scales)} {high}" if codes else "",
            ", ".join([f"{_power(most)} ({share(loss.scales[most] / total)})", *rest]),
        )
    return table


def _power(code: int) -> str:
    return "NaN" if code == histogram.NAN else f"2^{code - 127}"
