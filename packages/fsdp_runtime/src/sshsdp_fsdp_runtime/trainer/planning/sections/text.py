"""How numbers and names look in every section."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from sshsdp_fsdp_runtime.trainer.planning.folding import Fold
from sshsdp_shardchain import Degrees

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def nbytes_text(nbytes: float) -> str:
    """Bytes in the unit that leaves up to four digits before the point."""
    for unit in _UNITS:
        if abs(nbytes) < 1024 or unit == _UNITS[-1]:
            break
        nbytes /= 1024
    return f"{nbytes:,.0f} {unit}" if unit == "B" else f"{nbytes:,.2f} {unit}"


def count_text(number: int) -> str:
    """An exact number with separators, and its order of magnitude where it is large."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if number >= size:
            return f"{number / size:,.2f}{unit}"
    return f"{number:,}"


def degrees_text(degrees: Degrees) -> str:
    """As the options take them."""
    return f"{degrees.zero3},{degrees.zero2},{degrees.zero1}"


def folds_text(folds: Sequence[Fold], limit: int) -> str:
    """A line per pattern, at most `limit` of them."""
    shown = [fold.pattern for fold in folds[:limit]]
    hidden = folds[limit:]
    if hidden:
        shown.append(f"... {len(hidden)} more patterns of {sum(f.count for f in hidden):,} tensors")
    return "\n".join(shown)


def ranks_text(ranks: Sequence[int], limit: int = 5) -> str:
    """Ranks in their order, elided in the middle."""
    if len(ranks) <= limit:
        return " ".join(map(str, ranks))
    head = " ".join(map(str, ranks[: limit - 1]))
    return f"{head} ... {ranks[-1]}"


def table(title: str, *columns: str) -> Table:
    """An empty table.

    Columns that start with ``>`` hold numbers and ``=`` short words, neither of which is wrapped;
    the others share what room is left.
    """
    result = Table(
        title=title, box=SIMPLE_HEAD, pad_edge=False, title_justify="left", title_style="bold"
    )
    for column in columns:
        right, word = column.startswith(">"), column.startswith("=")
        result.add_column(
            column.lstrip(">="),
            justify="right" if right else "left",
            no_wrap=right or word,
            overflow="fold",
        )
    return result
