"""Messages over torch.distributed, apart from the user's own groups."""

from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

from sshsdp_zerosm.errors import TransportError

FOREVER = timedelta(days=3650)
"""For receivers: gloo breaks all connections of a group when one wait takes too long."""


class Work(Protocol):
    """A message under way."""

    def wait(self, timeout: timedelta, /) -> bool:
        """Return when it was sent or is there; RuntimeError when the connection broke."""


class Group(Protocol):
    """What is needed of a torch.distributed process group on CPU tensors.

    Messages of one pair of ranks and one tag arrive in order. A sent tensor may be changed when its
    work was waited for.
    """

    def send(self, tensors: list[torch.Tensor], to: int, tag: int, /) -> Work:
        """Send one tensor; returns at once."""

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int, /) -> Work:
        """Receive into one tensor; returns at once."""


def open_group(rank: int, world: int, store: Any, timeout: float) -> Group:
    """Connect every rank to every other one by gloo.

    The interface is gloo's choice: the one that the host's name resolves to, or the one that the
    environment variable GLOO_SOCKET_IFNAME names.

    Args:
        rank: this rank.
        world: number of ranks.
        store: a store that only this connection uses; None in a world of one.
        timeout: seconds to wait for the others.

    Raises:
        TransportError: gloo can't connect.
    """
    # Imported here because not every build of torch has it.
    from torch.distributed import ProcessGroupGloo

    kept = PrefixStore("gloo", HashStore() if store is None else store)
    try:
        group: Any = ProcessGroupGloo(kept, rank, world, timedelta(seconds=timeout))
    except RuntimeError as error:
        raise TransportError(
            f"rank {rank}: expected gloo to connect {world} ranks within {timeout:g} s, got: "
            f"{error}.{_silent(kept, world)} If the hosts reach each other by another interface, "
            f"name it in GLOO_SOCKET_IFNAME"
        ) from error
    found: Group = group
    return found


def _silent(store: Any, world: int) -> str:
    """Which ranks have not shown gloo's address, where some have."""
    try:
        ranks = [rank for rank in range(world) if not store.check([f"0/{rank}"])]
    except RuntimeError:
        return ""
    listed = ", ".join(f"rank {rank}" for rank in ranks)
    return f" No address came from {listed}." if 0 < len(ranks) < world else ""
