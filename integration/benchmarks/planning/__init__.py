"""What planning and hooks cost on the host, at the sizes that the largest runs have.

`view`: one rank's part of a list of a million members that 131,072 ranks share. `trillion`: the
command `sshsdp plan` on a mixture of experts of a trillion parameters, from start to exit. `hooks`:
what forward and backward of a group pay beyond the arithmetic, on one rank.
"""

from collections.abc import Sequence

from testing.bench_program import Program

from .rows import HOOKS, TRILLION, VIEW, rows
from .sides import hooks, trillion, view

__all__ = ["HOOKS", "TRILLION", "VIEW", "hooks", "programs", "rows", "trillion", "view"]

RANKS = 131_072


def programs(*, quick: bool) -> Sequence[Program]:
    """Every cost; `quick`: one round, of a hundredth of the members and a small model."""
    rounds = 1 if quick else 3
    members, ranks = (10_000, 1024) if quick else (1_000_000, RANKS)
    world = {"nodes": RANKS // 8, "degrees": f"512,512,{RANKS}"}
    model = "qwen3_8b_a1b" if quick else "trillion_moe"
    passes = 20 if quick else 300
    return [
        Program(
            "sshsdp", VIEW, "view", arguments={"members": members, "ranks": ranks}, rounds=rounds
        ),
        Program(
            "sshsdp",
            TRILLION,
            "trillion",
            arguments=world | {"model": model},
            rounds=rounds,
        ),
        Program(
            "sshsdp", HOOKS, "hooks", arguments={"groups": 64, "passes": passes}, rounds=rounds
        ),
    ]
