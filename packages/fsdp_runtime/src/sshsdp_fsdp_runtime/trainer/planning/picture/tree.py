"""The data tree of one atom: boxes, a line from each to the one whose bytes it shares."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sshsdp_fsdp_runtime.trainer.planning.sections import FieldRow
from sshsdp_fsdp_runtime.trainer.planning.sections.fields import field_words
from sshsdp_fsdp_runtime.trainer.planning.sections.text import nbytes_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WEIGHT, GRADIENT, MAIN = "#cfe3f7", "#fbdcc4", "#d8ecd0"
_COLORS = {"weights": WEIGHT, "shard": WEIGHT, "own": WEIGHT, "main_weight": MAIN}


def draw_tree(axes: "Axes", rows: Sequence[FieldRow], title: str) -> None:
    """Fields with bytes of their own on the left, views of them to the right."""
    depths = _depths(rows)
    order = _depth_first(rows, None)
    deepest = max(depths.values())
    places: dict[str, tuple[float, float]] = {}
    line = 0.0
    previous = -1
    for row in order:
        depth = depths[row.field]
        # A first child stands beside its parent; everything else gets a line of its own.
        line += 0 if depth > previous >= 0 else 1
        previous = depth
        places[row.field] = (depth, -line)
        axes.text(
            *places[row.field],
            f"{field_words(row.field)}\n{row.dtype}, {nbytes_text(row.nbytes)}\n"
            + (f"{row.arena} + {row.offset:,}" if row.inside is None else "view"),
            ha="center",
            va="center",
            fontsize=7,
            bbox={
                "boxstyle": "round,pad=0.35",
                "facecolor": _COLORS.get(row.field, GRADIENT),
                "edgecolor": "black" if row.inside is None else "gray",
            },
        )
        if row.inside is not None:
            (x0, y0), (x1, y1) = places[row.inside], places[row.field]
            axes.plot((x0, x1), (y0, y1), color="gray", linewidth=1, zorder=0)
    axes.set_xlim(-0.6, deepest + 0.6)
    axes.set_ylim(-line - 0.7, -0.3)
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_axis_off()


def _depths(rows: Sequence[FieldRow]) -> dict[str, int]:
    depths: dict[str, int] = {}
    for row in rows:  # outer fields come first
        depths[row.field] = 0 if row.inside is None else depths[row.inside] + 1
    return depths


def _depth_first(rows: Sequence[FieldRow], inside: str | None) -> list[FieldRow]:
    return [
        each
        for row in rows
        if row.inside == inside
        for each in (row, *_depth_first(rows, row.field))
    ]
