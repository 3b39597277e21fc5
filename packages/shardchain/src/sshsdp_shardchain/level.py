"""The levels of a shard chain."""

from enum import StrEnum


class Level(StrEnum):
    """How finely the flattened buffer of a tensor list is cut, coarsest first.

    Source: SS-HSDP section 3.2, the chain W -> W^z3 -> W^z2 -> W^z1.
    """

    FULL = "full"
    """The whole buffer, as kernels see it."""
    ZERO3 = "zero3"
    """Weight shards."""
    ZERO2 = "zero2"
    """Gradient shards."""
    ZERO1 = "zero1"
    """Optimizer shards."""
