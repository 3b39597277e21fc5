"""Who holds a tensor where no shard chain says it."""

from collections.abc import Mapping
from dataclasses import dataclass

from sshsdp_shardchain import Holding


@dataclass(frozen=True, slots=True)
class WholeHolders:
    """A world of one rank, which holds everything.

    Attributes:
        numels: elements of each tensor.
    """

    numels: Mapping[str, int]

    @property
    def width(self) -> int:
        """One rank."""
        return 1

    def of(self, name: str) -> tuple[Holding, ...]:
        """Rank 0."""
        return (Holding(0, 0, self.numels[name]),) if self.numels[name] else ()


@dataclass(frozen=True, slots=True)
class RowHolders:
    """Tensors that are cut along their first dimension, as ``DTensor`` with ``Shard(0)`` does.

    Each rank has ``ceil(rows / ranks)`` rows; the last ones have fewer, or none.

    Attributes:
        shapes: of the whole tensors.
        ranks: that share each of them.
    """

    shapes: Mapping[str, tuple[int, ...]]
    ranks: int

    @property
    def width(self) -> int:
        """All ranks."""
        return self.ranks

    def of(self, name: str) -> tuple[Holding, ...]:
        """The ranks with at least one element."""
        shape = self.shapes[name]
        rows = shape[0] if shape else 1
        row = 1
        for size in shape[1:]:
            row *= size
        chunk = -(-rows // self.ranks)
        found = []
        for rank in range(self.ranks):
            start, stop = min(rank * chunk, rows), min((rank + 1) * chunk, rows)
            if row * (stop - start):
                found.append(Holding(rank, start * row, stop * row))
        return tuple(found)
