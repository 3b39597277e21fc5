"""What Muon adds to a training step over AdamW, on the reference model of `fsdp2`.

Sides: `adamw`, for all parameters, and `muon`: queries, keys and values head by head, the output
projection by columns of a head, both matrices of the MLP whole, and the rest by AdamW. Both are
sharded over two ranks of one thread, in FP32, with four microbatches per step.
"""

from collections.abc import Sequence

from testing.bench_program import Program

from .rows import LARGE, SMALL, rows
from .sides import adamw, muon

__all__ = ["LARGE", "SMALL", "adamw", "muon", "programs", "rows"]


def programs(*, quick: bool) -> Sequence[Program]:
    """Both sides under both workloads; `quick`: one round of few steps."""
    few = {"warmup": 1, "steps": 1} if quick else {"warmup": 1, "steps": 4}
    sizes = {SMALL: {"sequences": 1, "tokens": 64}, LARGE: {"sequences": 2, "tokens": 256}}
    return [
        Program(side, workload, side, ranks=2, arguments=size | few, rounds=1 if quick else 3)
        for workload, size in sizes.items()
        for side in ("adamw", "muon")
    ]
