"""The whole picture: a row of two drawings per kind of atom."""

from pathlib import Path

from sshsdp_fsdp_runtime.plan import Plan
from sshsdp_fsdp_runtime.plan.alike import group_kinds
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.planning.picture.chain import draw_chain
from sshsdp_fsdp_runtime.trainer.planning.picture.tree import draw_tree
from sshsdp_fsdp_runtime.trainer.planning.sections import field_rows

_SUFFIXES = (".pdf", ".png", ".svg")
_ATOMS = 4  # kinds that are drawn, the largest ones; the tables have all


def write_picture(plan: Plan, rank: int, path: Path) -> None:
    """Draw what `rank` holds of each kind of atom, and how its list is cut.

    Raises:
        InputError: matplotlib (extra `plots`) is not installed, or the file can't be written.
    """
    if path.suffix not in _SUFFIXES:
        raise InputError(f"expected --picture as a {', '.join(_SUFFIXES)} file, got {path}")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError(
            "expected matplotlib for --picture, which is not installed; do:"
            " pip install 'sshsdp-fsdp-runtime[plots]'"
        ) from error
    kinds = [
        (len(kind.groups), atom) for kind in group_kinds(plan.groups) for atom in kind.first.atoms
    ]
    kinds.sort(key=lambda kind: -kind[0] * kind[1].layout.numel)
    hidden = len(kinds) - _ATOMS
    kinds = kinds[:_ATOMS]
    figure = Figure(figsize=(15, 3.6 * len(kinds) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(kinds), 2, squeeze=False, width_ratios=(1, 1.25))
    rows = field_rows(plan, rank)
    for (left, right), (count, atom) in zip(axes, kinds, strict=True):
        own = [row for row in rows if row.atom == atom.name]
        draw_tree(left, own, f"atom {atom.name}, {count} alike: bytes on rank {rank}")
        draw_chain(right, atom, rank)
    more = f"; {hidden} smaller kinds of atoms are not drawn" if hidden > 0 else ""
    topology = plan.topology
    figure.suptitle(
        f"{plan.world:,} ranks on {topology.nodes:,} node(s), rank {rank} highlighted{more}"
    )
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise InputError(f"expected a file that can be written, got {path}: {error}") from error
