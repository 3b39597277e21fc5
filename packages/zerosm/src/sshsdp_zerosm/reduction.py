"""Sums of memory regions, chunk by chunk, in a fixed order."""

import math
from collections.abc import Sequence

import torch

CHUNK = 64 * 1024
"""Elements per chunk: sum, scale and store of a chunk happen while it is in the cache."""


class Scratch:
    """Chunk-sized temporaries, two per accumulator dtype, shared by a transport's programs."""

    def __init__(self) -> None:
        self._pairs: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor]] = {}

    def pair(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Two 1-D tensors of CHUNK elements of `dtype`."""
        if dtype not in self._pairs:
            with torch.inference_mode(False):
                self._pairs[dtype] = (
                    torch.empty(CHUNK, dtype=dtype),
                    torch.empty(CHUNK, dtype=dtype),
                )
        return self._pairs[dtype]


class _Chunk:
    """One chunk: slices made once."""

    __slots__ = ("cast", "sources", "target", "total")

    def __init__(
        self,
        sources: tuple[torch.Tensor, ...],
        target: torch.Tensor,
        total: torch.Tensor,
        cast: torch.Tensor,
    ) -> None:
        self.sources = sources
        self.target = target
        self.total = total
        self.cast = cast


class Reduction:
    """``target = (target if accumulate else 0) + scale * (((s0 + s1) + s2) + ...)``.

    The order of operations depends on nothing but the arguments, so that two executors get the
    same bits: sum in the accumulator's dtype, round the scaled sum, add it.

    Args:
        sources: 1-D tensors of one dtype and length.
        target: 1-D tensor of as many elements; it may be one of the sources.
        accumulator: dtype of the sum.
        scale: factor on the sum.
        scratch: temporaries.
    """

    def __init__(
        self,
        sources: Sequence[torch.Tensor],
        target: torch.Tensor,
        accumulator: torch.dtype,
        scale: float,
        scratch: Scratch,
    ) -> None:
        total, cast = scratch.pair(accumulator)
        self._scale = scale
        self._same = sources[0].dtype == accumulator
        self._stored_same = target.dtype == accumulator
        # Adding `scale * total` with alpha is a fused multiply-add in the vector body only: it
        # equals rounding twice exactly where the product is exact.
        self._exact = math.frexp(scale)[0] == 0.5
        apart = not any(_overlap(source, target) for source in sources)
        self._direct = apart and self._stored_same and scale == 1.0
        self._chunks = []
        for start in range(0, target.numel(), CHUNK):
            piece = slice(start, start + CHUNK)
            kept = slice(target[piece].numel())
            parts = tuple(source[piece] for source in sources)
            self._chunks.append(_Chunk(parts, target[piece], total[kept], cast[kept]))

    def overwrite(self, accumulate: bool) -> None:
        """Do it once without adding to what was there, whatever the run says."""
        del accumulate
        self.run(False)

    def run(self, accumulate: bool) -> None:
        """Do it once."""
        if accumulate:
            for chunk in self._chunks:
                self._add(chunk, self._sum(chunk, chunk.total))
        elif self._direct:
            for chunk in self._chunks:
                if (total := self._sum(chunk, chunk.target)) is not chunk.target:
                    chunk.target.copy_(total)
        else:
            for chunk in self._chunks:
                self._store(chunk, self._sum(chunk, chunk.total))

    def _sum(self, chunk: _Chunk, out: torch.Tensor) -> torch.Tensor:
        """The sum, in `out` unless a single source already is it."""
        first, *rest = chunk.sources
        if self._same:
            if not rest:
                return first
            torch.add(first, rest[0], out=out)
            for source in rest[1:]:
                out.add_(source)
            return out
        # Casting first: a mixed-dtype add is several times slower than a cast and an add.
        out.copy_(first)
        for source in rest:
            chunk.cast.copy_(source)
            out.add_(chunk.cast)
        return out

    def _store(self, chunk: _Chunk, total: torch.Tensor) -> None:
        if self._scale == 1.0:
            chunk.target.copy_(total)
        elif self._stored_same:
            torch.mul(total, self._scale, out=chunk.target)
        else:
            chunk.target.copy_(torch.mul(total, self._scale, out=chunk.total))

    def _add(self, chunk: _Chunk, total: torch.Tensor) -> None:
        if not self._stored_same:
            torch.mul(total, self._scale, out=chunk.total)
            chunk.cast.copy_(chunk.target)
            chunk.target.copy_(chunk.cast.add_(chunk.total))
        elif self._exact:
            chunk.target.add_(total, alpha=self._scale)
        else:
            chunk.target.add_(torch.mul(total, self._scale, out=chunk.total))


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    starts = one.data_ptr(), other.data_ptr()
    stops = (
        starts[0] + one.numel() * one.element_size(),
        starts[1] + other.numel() * other.element_size(),
    )
    return max(starts) < min(stops)
