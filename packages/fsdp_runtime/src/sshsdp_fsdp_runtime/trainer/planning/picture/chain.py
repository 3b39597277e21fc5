"""The shard chain of one atom's list: a bar per level, cut at the chunks of the ranks."""

from typing import TYPE_CHECKING

from sshsdp_fsdp_runtime.plan import AtomPlan
from sshsdp_fsdp_runtime.trainer.planning.picture.tree import GRADIENT, MAIN, WEIGHT
from sshsdp_fsdp_runtime.trainer.planning.sections.text import count_text, degrees_text
from sshsdp_shardchain import Level

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle

_LEVELS = (
    (Level.FULL, "full: members", "white"),
    (Level.ZERO3, "ZeRO-3: weights", WEIGHT),
    (Level.ZERO2, "ZeRO-2: gradients", GRADIENT),
    (Level.ZERO1, "ZeRO-1: main, state", MAIN),
)
_LABELS = 32  # chunks that still have room for the number of their rank
_EDGES = 256  # chunks that still can be told apart
_MEMBERS = 0.05  # share of the list from which a member's name has room


def draw_chain(axes: "Axes", atom: AtomPlan, rank: int) -> None:
    """Members above, below them what each rank holds; the chunk of `rank` is hatched."""
    chain = atom.layout.chain
    for row, (level, words, color) in enumerate(_LEVELS):
        bottom = -row - 0.3
        axes.add_patch(_box(0, 1, bottom, color))
        axes.text(-0.01, -row, words, ha="right", va="center", fontsize=8)
        if level is Level.FULL:
            _draw_members(axes, atom, bottom)
            continue
        chunks = atom.degrees.chunks(level)
        if chunks <= _EDGES:
            axes.vlines(
                [index / chunks for index in range(1, chunks)],
                bottom,
                bottom + 0.6,
                color="black",
                linewidth=0.5,
            )
        held = chain.range(level, rank)
        left, right = held.start / max(chain.numel, 1), held.stop / max(chain.numel, 1)
        axes.add_patch(_box(left, right, bottom, "none", hatch="////", edgecolor="firebrick"))
        if chunks <= _LABELS:
            replica = rank // chunks
            for index, owner in enumerate(chain.owners(level, replica)):
                axes.text(
                    (index + 0.5) / chunks,
                    -row,
                    str(owner),
                    ha="center",
                    va="center",
                    fontsize=7,
                    bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "linewidth": 0},
                )
        else:
            axes.text(
                (left + right) / 2, bottom - 0.02, f"rank {rank}", ha="center", va="top", fontsize=7
            )
        copies = chain.world // chunks
        axes.text(1.01, -row, f"{chunks:,} chunks\n{copies:,} ranks each", va="center", fontsize=7)
    axes.set_xlim(-0.22, 1.12)
    axes.set_ylim(-len(_LEVELS) + 0.3, 0.6)
    axes.set_title(
        f"degrees {degrees_text(atom.degrees)}, {count_text(chain.numel)} elements, "
        f"{atom.layout.padding / max(chain.numel, 1):.2%} padding",
        fontsize=9,
        loc="left",
    )
    axes.set_axis_off()


def _draw_members(axes: "Axes", atom: AtomPlan, bottom: float) -> None:
    total = max(atom.layout.numel, 1)
    for index, parameter in enumerate(atom.parameters):
        placement = atom.layout.placement(parameter.name)
        left, width = placement.offset / total, placement.numel / total
        if width < 1 / 2000:
            continue
        shade = "#e8e8e8" if index % 2 else "#c8c8c8"
        axes.add_patch(_box(left, left + width, bottom, shade))
        if width >= _MEMBERS:
            name = parameter.name.removesuffix(".weight").rpartition(".")[2]
            axes.text(left + width / 2, bottom + 0.3, name, ha="center", va="center", fontsize=6)


def _box(
    left: float,
    right: float,
    bottom: float,
    color: str,
    hatch: str | None = None,
    edgecolor: str = "black",
) -> "Rectangle":
    from matplotlib.patches import Rectangle

    return Rectangle(
        (left, bottom),
        right - left,
        0.6,
        facecolor=color,
        edgecolor=edgecolor,
        linewidth=0.6,
        hatch=hatch,
    )
