"""Sharded training on CPU ranks against FSDP2 and against a floor without communication.

Sides: `fsdp2` (PyTorch), `sshsdp` (ours), and `paired`: ours and the floor (the same model and
optimizer work without any communication), step by step in the same processes. All train the frozen
reference model in FP32 with four microbatches per step, the same seeds, data and learning rate,
ranks of one thread.
"""

from collections.abc import Sequence

from testing.bench_program import Program

from .rows import LARGE, MEMORY, SMALL, WIDE, rows
from .sides import fsdp2, paired, sshsdp

__all__ = ["fsdp2", "paired", "programs", "rows", "sshsdp"]


def programs(*, quick: bool) -> Sequence[Program]:
    """All sides under all workloads; `quick`: one round of few steps."""
    small = {"sequences": 1, "tokens": 64}
    large = {"sequences": 2, "tokens": 256}
    rounds = 1 if quick else 3
    # Large and wide steps take seconds: fewer of them, so that a whole run stays below ten minutes.
    many = {"warmup": 1, "steps": 2} if quick else {"warmup": 2, "steps": 4}
    few = {"warmup": 1, "steps": 1} if quick else {"warmup": 1, "steps": 3}
    pairs = {"warmup": 1, "steps": 2} if quick else {"warmup": 2, "steps": 16}
    # A few percent are in question here, and a pair's ratio varies by five on a quiet machine.
    many_pairs = pairs if quick else {"warmup": 2, "steps": 32}
    plans = [
        (SMALL, ["fsdp2", "sshsdp"], 2, small | many, rounds),
        (LARGE, ["fsdp2", "sshsdp"], 2, large | few, rounds),
        (SMALL, ["paired"], 2, small | pairs, 1),
        (LARGE, ["paired"], 2, large | many_pairs, 1),
        (WIDE, ["fsdp2", "sshsdp"], 4, small | few, rounds),
        (MEMORY, ["fsdp2", "sshsdp"], 2, small | few, 1),
    ]
    return [
        Program(
            side,
            workload,
            function=side,
            ranks=ranks,
            arguments=arguments,
            rounds=count,
            watch_memory=workload == MEMORY,
        )
        for workload, sides, ranks, arguments, count in plans
        for side in sides
    ]
