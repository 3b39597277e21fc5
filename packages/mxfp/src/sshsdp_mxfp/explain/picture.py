"""The numbers as a picture."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sshsdp_mxfp.explain import histogram
from sshsdp_mxfp.explain.advice import choose
from sshsdp_mxfp.explain.errors import UserError, missing
from sshsdp_mxfp.explain.loss import Loss
from sshsdp_mxfp.explain.names import name_of
from sshsdp_mxfp.explain.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PLAIN, _TAKEN = "tab:blue", "tab:orange"


def write_picture(path: Path, title: str, summary: Summary, losses: Sequence[Loss]) -> None:
    """Draw magnitudes, signal to noise, what goes wrong, and scales, as a PNG.

    Args:
        path: where to.
        title: of the tensor.
        summary: of the tensor.
        losses: at least one.

    Raises:
        UserError: without matplotlib, or where the file can't be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing("matplotlib", "for --png") from error
    figure = Figure(figsize=(13, 4 + 0.5 * len(losses)), layout="constrained")
    FigureCanvasAgg(figure)
    (magnitudes, scales), (noise, wrong) = figure.subplots(2, 2)
    _draw_magnitudes(magnitudes, summary)
    _draw_scales(scales, losses)
    _draw_noise(noise, losses)
    _draw_wrong(wrong, losses)
    sizes = "x".join(map(str, summary.shape))
    figure.suptitle(f"{title}: {sizes} {str(summary.dtype).removeprefix('torch.')}")
    try:
        figure.savefig(path, format="png", dpi=110)
    except OSError as error:
        raise UserError(f"expected a --png file that can be written, got: {error}") from error


def _draw_magnitudes(axes: "Axes", summary: Summary) -> None:
    found = summary.exponents
    shares = [count / summary.numel for count in found.values()]
    axes.bar(list(found), shares, width=1.0, align="edge", color=_PLAIN)
    axes.set_yscale("log")
    axes.set_xlabel("magnitudes of elements, log2")
    axes.set_ylabel("share of elements")


def _draw_scales(axes: "Axes", losses: Sequence[Loss]) -> None:
    """A strip per format, darker where more blocks have a scale."""
    used = [codes for loss in losses if (codes := histogram.used(loss.scales))]
    low = min((codes[0] for codes in used), default=126)
    high = max((codes[-1] for codes in used), default=128)
    rows = [[count / sum(loss.scales) for count in loss.scales[low : high + 1]] for loss in losses]
    height = len(losses) - 0.5
    image = axes.imshow(
        rows, aspect="auto", cmap="Blues", extent=(low - 127.5, high - 126.5, height, -0.5)
    )
    axes.figure.colorbar(image, ax=axes, label="share of blocks")
    _name(axes, losses)
    axes.set_xlabel("scales of blocks, log2")


def _draw_noise(axes: "Axes", losses: Sequence[Loss]) -> None:
    values = [0.0 if math.isinf(loss.decibels) else loss.decibels for loss in losses]
    taken = choose(losses)
    colors = [_TAKEN if loss is taken else _PLAIN for loss in losses]
    axes.barh(range(len(losses)), values, color=colors)
    for place, (value, loss) in enumerate(zip(values, losses, strict=True)):
        text = "exact" if math.isinf(loss.decibels) else f"{value:.1f} dB, {loss.bits:.2f} bits"
        axes.text(max(value, 0), place, f" {text}", va="center", fontsize="small")
    axes.margins(x=0.4)
    _name(axes, losses)
    axes.invert_yaxis()
    axes.set_xlabel("signal to noise, dB (orange: the advice)")


def _draw_wrong(axes: "Axes", losses: Sequence[Loss]) -> None:
    kinds = {
        "saturated": [loss.saturated for loss in losses],
        "to zero": [loss.vanished for loss in losses],
        "subnormal": [loss.subnormal for loss in losses],
    }
    for place, (name, counts) in enumerate(kinds.items()):
        at = [row + 0.27 * (place - 1) for row in range(len(losses))]
        shares = [count / loss.numel for count, loss in zip(counts, losses, strict=True)]
        axes.barh(at, shares, height=0.25, label=name)
    axes.set_xscale("symlog", linthresh=1e-6)
    axes.set_xlim(0, 1)
    _name(axes, losses)
    axes.invert_yaxis()
    axes.set_xlabel("share of elements")
    axes.legend(fontsize="small", ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _name(axes: "Axes", losses: Sequence[Loss]) -> None:
    axes.set_yticks(range(len(losses)), [name_of(loss.format) for loss in losses])
