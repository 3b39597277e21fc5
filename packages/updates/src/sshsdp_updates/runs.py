"""Runs: the longest contiguous local ranges that are treated alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sshsdp_shardchain import Fragment


@dataclass(frozen=True, slots=True)
class Run:
    """A half-open range of a local buffer.

    Attributes:
        start: first element, relative to the local buffer.
        stop: one past the last element.
        key: what all members in it have in common.
    """

    start: int
    stop: int
    key: int


def runs(fragments: Sequence[Fragment], keys: Sequence[int | None]) -> tuple[Run, ...]:
    """Join neighbours with equal keys; a gap (padding) or another key ends a run.

    Args:
        fragments: of one local buffer, in any order; empty ones have no part in a run.
        keys: one per fragment; None leaves the fragment out.

    Returns:
        Disjoint runs in buffer order; together they cover exactly the fragments with a key.
    """
    return tuple(_joined(fragments, keys))


def _joined(fragments: Sequence[Fragment], keys: Sequence[int | None]) -> Iterator[Run]:
    run: Run | None = None
    pairs = zip(fragments, keys, strict=True)
    for fragment, key in sorted(pairs, key=lambda pair: pair[0].local_offset):
        if key is None or fragment.empty:
            continue
        start, stop = fragment.local_offset, fragment.local_offset + fragment.numel
        if run is not None and run.stop == start and run.key == key:
            run = Run(run.start, stop, key)
            continue
        if run is not None:
            yield run
        run = Run(start, stop, key)
    if run is not None:
        yield run
