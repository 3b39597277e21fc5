"""Many numbered names as few: ``layers.0.w`` to ``layers.47.w`` become ``layers.{48}.w``.

The notation is that of shape files (`repeats`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fold:
    """Names that differ in numbers only: a pattern, and how many names it stands for."""

    pattern: str
    count: int


def fold_names(names: Iterable[str]) -> tuple[Fold, ...]:
    """The names as patterns, in the order in which they appear first; every name counts once."""
    by_template: dict[tuple[str | None, ...], dict[tuple[int, ...], None]] = {}
    for name in names:
        template: list[str | None] = []
        indices: list[int] = []
        for part in name.split("."):  # a loop: there may be 100,000s of names
            if part.isdecimal():
                indices.append(int(part))
                template.append(None)
            else:
                template.append(part)
        by_template.setdefault(tuple(template), {})[tuple(indices)] = None
    return tuple(
        Fold(_written(shape, block), _size(block))
        for shape, rows in by_template.items()
        for block in _blocks(sorted(rows))
    )


_Block = tuple[tuple[int, ...], ...]  # per number in a name, its values: all combinations


def _blocks(rows: Sequence[tuple[int, ...]]) -> Iterator[_Block]:
    """Sorted rows as blocks that hold all combinations of their columns' values."""
    if not rows[0]:
        yield ()
        return
    tails: dict[int, list[tuple[int, ...]]] = {}
    for row in rows:
        tails.setdefault(row[0], []).append(row[1:])
    heads: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for head, tail in tails.items():
        heads.setdefault(tuple(tail), []).append(head)
    for tail_rows, values in heads.items():
        for block in _blocks(tail_rows):
            yield (tuple(values), *block)


def _size(block: _Block) -> int:
    size = 1
    for values in block:
        size *= len(values)
    return size


def _written(template: tuple[str | None, ...], block: _Block) -> str:
    values = iter(block)
    return ".".join(_braces(next(values)) if part is None else part for part in template)


def _braces(values: Sequence[int]) -> str:
    if len(values) == 1:
        return str(values[0])
    runs = list(_runs(values))
    if runs == [(0, len(values))]:
        return f"{{{len(values)}}}"
    texts = (str(start) if stop == start + 1 else f"{start}:{stop}" for start, stop in runs)
    return f"{{{','.join(texts)}}}"


def _runs(values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive numbers, half-open."""
    start = previous = values[0]
    for value in values[1:]:
        if value != previous + 1:
            yield start, previous + 1
            start = value
        previous = value
    yield start, previous + 1
