"""Seat: a rank's place in the run."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from torch.distributed import Store, rendezvous  # type: ignore[attr-defined]

from sshsdp_fsdp_runtime.trainer.config import TrainConfig
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.stop import SignalStop, Stop

DEFAULT_RANKS = 2
_TORCHRUN_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Seat:
    """Who a rank is and what connects it.

    Attributes:
        rank: from 0.
        world: number of ranks.
        store: shared by all ranks; None for a single one.
        stop: asks this rank to end.
    """

    rank: int
    world: int
    store: Store | None
    stop: Stop


def torchrun_world(environment: Mapping[str, str] = os.environ) -> int | None:
    """Number of ranks that torchrun (or whoever sets its variables) started; None: nobody did.

    Raises:
        InputError: when only some of the variables are set.
    """
    missing = [name for name in _TORCHRUN_NAMES if name not in environment]
    # MASTER_ADDR and MASTER_PORT alone are often left over in a shell.
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    if missing:
        raise InputError(
            f"expected {', '.join(_TORCHRUN_NAMES)} in the environment, got no"
            f" {', '.join(missing)}; start with torchrun, or unset RANK and WORLD_SIZE"
        )
    return int(environment["WORLD_SIZE"])


def torchrun_seat() -> Seat:
    """The seat that torchrun's variables describe."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = next(rendezvous("env://", rank, world))[0]
    return Seat(rank, world, store, SignalStop())


def resolve_ranks(config: TrainConfig, started: int | None) -> TrainConfig:
    """`config` with its number of ranks settled.

    Args:
        config: ranks may be None.
        started: what torchrun started, if it did.

    Raises:
        InputError: when the two contradict each other, or don't fit the batch.
    """
    if started is not None and config.ranks not in (None, started):
        raise InputError(
            f"expected ranks = {started} under torchrun, got {config.ranks}; leave out --ranks"
        )
    return config.with_ranks(started or config.ranks or DEFAULT_RANKS)
