"""The transport that a launcher's environment describes."""

import os
from datetime import timedelta

from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from sshsdp_zerosm import Transport, connect

TIMEOUT = 300.0  # seconds


def transport_from_environment() -> Transport:
    """Connect as torchrun's variables say, or to nobody when there are none. Collective.

    Raises:
        RuntimeError: some of the variables are missing.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return connect(0, 1)
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise RuntimeError(
            f"expected torchrun's environment with WORLD_SIZE={world}, got none of "
            f"{', '.join(missing)}; start ranks with torchrun, or pass transport="
        )
    rank = int(os.environ["RANK"])
    store = next(rendezvous("env://", rank, world, timeout=timedelta(seconds=TIMEOUT)))[0]
    return connect(rank, world, PrefixStore("sshsdp", store), timeout=TIMEOUT)
