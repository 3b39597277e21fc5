"""The transport that a launcher's environment describes."""

import os
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

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
    # torchrun's agent already serves a store; otherwise rank 0 does.
    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world,
        rank == 0 and not served,
        timedelta(seconds=TIMEOUT),
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return connect(rank, world, PrefixStore(f"sshsdp/{attempt}", store), timeout=TIMEOUT)
