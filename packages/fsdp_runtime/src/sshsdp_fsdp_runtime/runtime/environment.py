"""The transport that a launcher's environment describes."""

import os
from datetime import timedelta

from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from sshsdp_zerosm import Transport, connect

TIMEOUT = 300.0  # seconds


def transport_from_environment() -> Transport:
    """Connect as torchrun's variables say, or to nobody when there are none. Collective.

    Raises:
        RuntimeError: some of the variables are missing, or no numbers that fit.
    """
    world = _number("WORLD_SIZE", "1", 1)
    if world == 1:
        return connect(0, 1)
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise RuntimeError(
            f"expected torchrun's environment with WORLD_SIZE={world}, got none of "
            f"{', '.join(missing)}; start ranks with torchrun, or pass transport="
        )
    rank = _number("RANK", "", 0)
    if rank >= world:
        raise RuntimeError(
            f"expected RANK from 0 to {world - 1} with WORLD_SIZE={world}, got RANK={rank}; number "
            "the ranks from 0, or start them with torchrun"
        )
    _number("MASTER_PORT", "", 0)
    store = next(rendezvous("env://", rank, world, timeout=timedelta(seconds=TIMEOUT)))[0]
    return connect(rank, world, PrefixStore("sshsdp", store), timeout=TIMEOUT)


def _number(name: str, default: str, low: int) -> int:
    text = os.environ.get(name, default)
    if not text.strip().isdecimal() or int(text) < low:
        raise RuntimeError(
            f"expected {name} to be an integer of {low} or more, got {name}={text!r}; start ranks "
            "with torchrun, which sets it, or pass transport="
        )
    return int(text)
