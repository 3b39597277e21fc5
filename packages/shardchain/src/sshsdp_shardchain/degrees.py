"""The three nested sharding degrees."""

from dataclasses import astuple, dataclass

from .level import Level


@dataclass(frozen=True, slots=True)
class Degrees:
    """Into how many chunks a buffer is cut for weights, gradients and optimizer.

    Each degree divides the next: ``zero3 | zero2 | zero1``. The well-known cases have constructors
    of their own, ``Degrees.for_ddp()`` to ``Degrees.for_outer_zero1(shards, ranks)``.

    Args:
        zero3: number of weight chunks.
        zero2: number of gradient chunks, a multiple of ``zero3``.
        zero1: number of optimizer chunks, a multiple of ``zero2``.

    Raises:
        ValueError: a degree is not a positive integer, or does not divide the next one.
    """

    zero3: int
    zero2: int
    zero1: int

    def __post_init__(self) -> None:
        for name in ("zero3", "zero2", "zero1"):
            degree = getattr(self, name)
            if not isinstance(degree, int) or isinstance(degree, bool) or degree < 1:
                raise ValueError(
                    f"expected degrees that are positive integers, got {name}={degree!r}; "
                    f"use {name}=1 where nothing is sharded"
                )
        if self.zero2 % self.zero3 or self.zero1 % self.zero2:
            raise ValueError(
                "expected each degree to divide the next (zero3 | zero2 | zero1), "
                f"got {astuple(self)}; use {_nested_below(self.zero3, self.zero2, self.zero1)}"
            )

    @classmethod
    def for_ddp(cls) -> "Degrees":
        """Plain data parallelism, ``(1, 1, 1)``: every rank holds everything."""
        return cls(1, 1, 1)

    @classmethod
    def for_zero1(cls, ranks: int) -> "Degrees":
        """ZeRO-1, ``(1, 1, P)``: the optimizer in ``ranks`` chunks."""
        return cls(1, 1, ranks)

    @classmethod
    def for_zero2(cls, ranks: int) -> "Degrees":
        """ZeRO-2, ``(1, P, P)``: gradients and optimizer in ``ranks`` chunks."""
        return cls(1, ranks, ranks)

    @classmethod
    def for_zero3(cls, ranks: int) -> "Degrees":
        """ZeRO-3 (FSDP), ``(P, P, P)``: everything in ``ranks`` chunks."""
        return cls(ranks, ranks, ranks)

    @classmethod
    def for_hsdp(cls, shards: int) -> "Degrees":
        """Hybrid sharding, ``(S, S, S)``: ZeRO-3 over ``shards`` ranks, the world in replicas.

        The same degrees as ``for_zero3``; what differs is that the world is larger than ``shards``.
        """
        return cls(shards, shards, shards)

    @classmethod
    def for_outer_zero1(cls, shards: int, ranks: int) -> "Degrees":
        """ZeRO-3 inside, ZeRO-1 over all, ``(S, S, P)``.

        Args:
            shards: chunks of weights and gradients, the ranks of a node as a rule.
            ranks: chunks of the optimizer, a multiple of ``shards``.
        """
        return cls(shards, shards, ranks)

    def check_world(self, world: int) -> None:
        """Check that a group of ranks can be cut by these degrees.

        Args:
            world: number of ranks in the group.

        Raises:
            ValueError: ``world`` is not a positive multiple of ``zero1``.
        """
        if world < 1:
            raise ValueError(f"expected a world of at least 1 rank, got {world}; pass its size")
        if world % self.zero1:
            legal = _nested_below(self.zero3, self.zero2, _divisor_below(world, self.zero1))
            larger = -(-world // self.zero1) * self.zero1
            raise ValueError(
                f"expected zero1 to divide the world of {world} ranks, got zero1={self.zero1}; "
                f"use {legal}, or {larger} ranks"
            )

    def chunks(self, level: Level) -> int:
        """Into how many chunks the whole buffer is cut at a level (1 at ``FULL``)."""
        return self._counts()[_DEPTH[level]]

    def steps(self, level: Level, above: Level = Level.FULL) -> tuple[tuple[int, int], ...]:
        """The cuts that lead from a chunk of the level ``above`` down to those of ``level``.

        Returns:
            One ``(stride, parts)`` per cut: each chunk is cut into ``parts``, and the holders of
            neighbouring parts are ``stride`` ranks apart (the coarsest cut is contiguous in rank).

        Raises:
            ValueError: ``above`` is the finer of the two levels.
        """
        first, last = _DEPTH[above], _DEPTH[level]
        if first > last:
            raise ValueError(
                f"expected the coarser of two levels above the finer, got {above} above {level}; "
                "swap them"
            )
        counts = self._counts()
        return tuple(
            (counts[depth], counts[depth + 1] // counts[depth]) for depth in range(first, last)
        )

    def _counts(self) -> tuple[int, int, int, int]:
        return (1, self.zero3, self.zero2, self.zero1)


_DEPTH = {level: depth for depth, level in enumerate(Level)}


def _divisor_below(number: int, limit: int) -> int:
    """The largest divisor of ``number`` that is at most ``limit``."""
    return next(divisor for divisor in range(min(limit, number), 0, -1) if number % divisor == 0)


def _nested_below(zero3: int, zero2: int, zero1: int) -> Degrees:
    """Legal degrees with this ``zero1`` and the others lowered as little as possible."""
    zero2 = _divisor_below(zero1, zero2)
    return Degrees(_divisor_below(zero2, zero3), zero2, zero1)
