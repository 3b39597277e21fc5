"""The ranks that take part in a schedule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sshsdp_zerosm.ops import Op
from sshsdp_zerosm.region import Region


@dataclass(frozen=True)
class Group:
    """Distinct ranks of a world; their order is the order of buffers and of summation.

    Raises:
        ValueError: an empty group, a rank twice, or one outside the world.
    """

    ranks: tuple[int, ...]
    world: int

    def __post_init__(self) -> None:
        legal = self.ranks and len(set(self.ranks)) == len(self.ranks)
        if not legal or not all(0 <= rank < self.world for rank in self.ranks):
            raise ValueError(
                f"expected one or more distinct ranks below {self.world}, got group {self.ranks}"
            )

    def others(self, rank: int) -> tuple[int, ...]:
        """All members but `rank`, starting after it and wrapping around.

        The rotation spreads the members' copies over the owners instead of all starting at one.
        """
        at = self.ranks.index(rank)
        return self.ranks[at + 1 :] + self.ranks[:at]

    def check_owned(self, what: str, regions: Sequence[Region]) -> None:
        """ValueError unless ``regions[i]`` is memory of member i."""
        owners = tuple(region.rank for region in regions)
        if owners != self.ranks:
            raise ValueError(
                f"expected {what}[i] to belong to the i-th rank of group {self.ranks}, "
                f"got regions of ranks {owners}"
            )

    def per_rank(self, ops: Callable[[int, int], Sequence[Op]]) -> tuple[tuple[Op, ...], ...]:
        """``ops(index in the group, rank)`` for members, nothing for all others."""
        index = {rank: i for i, rank in enumerate(self.ranks)}
        return tuple(
            tuple(ops(index[rank], rank)) if rank in index else () for rank in range(self.world)
        )


def gather_parts(shards: Sequence[Region], output: Region) -> list[Region]:
    """Where each shard lands in `output`, in order; ValueError unless they fill it exactly."""
    total = sum(shard.nbytes for shard in shards)
    if output.nbytes != total:
        raise ValueError(
            f"expected an output of {total} bytes, the sum of the shards, got {output}"
        )
    parts = []
    offset = 0
    for shard in shards:
        parts.append(output.part(offset, shard.nbytes))
        offset += shard.nbytes
    return parts
