"""What a rank tells the others about itself, through the store."""

import json
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from sshsdp_zerosm.errors import TransportError, WaitTimeoutError


@dataclass(frozen=True, slots=True)
class Card:
    """One rank's identity, what it asked for, and where it listens.

    Attributes:
        world: the world that it was started with.
        kind: of transport that it asked for.
        topology: that it asked for, or "real".
        host: boot id and inodes of network and process-id namespace; ranks can reach each other's
            abstract sockets and pids only if these are equal.
        pid: process id.
        uid: user id.
        address: name of its abstract socket, hexadecimal; random, so that it can't be foreseen.
        token: what a peer must say when it connects.
    """

    world: int
    kind: str
    topology: str
    host: tuple[str, str, str]
    pid: int
    uid: int
    address: str
    token: str

    @classmethod
    def own(cls, world: int, kind: str, topology: str) -> "Card":
        """The card of this process."""
        return cls(
            world=world,
            kind=kind,
            topology=topology,
            host=host_identity(),
            pid=os.getpid(),
            uid=os.getuid(),
            address=secrets.token_hex(16),
            token=secrets.token_hex(16),
        )

    @property
    def socket_name(self) -> bytes:
        """The abstract address."""
        return b"\0sshsdp-zerosm-" + self.address.encode()


def host_identity() -> tuple[str, str, str]:
    """(boot id, network namespace, process-id namespace) of this process.

    Where there is no such thing, ranks of one host can't share memory, and its name has to do.
    """
    if not sys.platform.startswith("linux"):
        return (socket.gethostname(), "", "")
    return (
        Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        os.readlink("/proc/self/ns/net"),
        os.readlink("/proc/self/ns/pid"),
    )


def trade_cards(rank: int, own: Card, store: Any, timeout: float) -> tuple[list[Card], str]:
    """Publish `own` and read everyone's.

    Args:
        rank: this rank.
        own: this rank's card.
        store: a torch.distributed store that all ranks share.
        timeout: seconds to wait for each other rank.

    Returns:
        All ranks' cards, and a prefix for keys of the store that no other connection uses.

    Raises:
        WaitTimeoutError: some rank didn't come.
        TransportError: ranks that asked for different things (the same error on every rank).
    """
    # Connecting again through the same store must not meet the cards of the time before.
    attempt = store.add(f"zerosm/connects/{rank}", 1)
    prefix = f"zerosm/{attempt}"
    store.set(f"{prefix}/{rank}", json.dumps(asdict(own)))
    cards = []
    for peer in range(own.world):
        key = f"{prefix}/{peer}"
        try:
            store.wait([key], timedelta(seconds=timeout))
        except RuntimeError as error:
            raise _absent(store, rank, peer, attempt, timeout) from error
        fields = json.loads(store.get(key))
        cards.append(Card(**fields | {"host": tuple(fields["host"])}))
    check_equal("world", [card.world for card in cards], "start all ranks with the same world")
    check_equal("kind of transport", [card.kind for card in cards], "pass the same kind to all")
    check_equal("topology", [card.topology for card in cards], "pass the same topology to all")
    return cards, prefix


def _absent(store: Any, rank: int, peer: int, attempt: int, after: float) -> TransportError:
    """The error of `rank` for a `peer` that has not come to its `attempt` to connect."""
    if store.add(f"zerosm/connects/{rank}", 0) > attempt:
        return TransportError(
            f"expected one process per rank, got rank {rank} twice while it waited {after:g} s for "
            f"rank {peer}: start every rank once, with a number of its own"
        )
    remedy = f"Rank {peer} has not come: look at its output, and whether it was started,"
    if attempt > 1 and not store.check([f"zerosm/{attempt - 1}/{peer}"]):
        remedy = (
            f"Rank {peer} has not come, and a rank {rank} has come before: look whether two "
            f"processes have number {rank}, and whether rank {peer} was started,"
        )
    return WaitTimeoutError(rank, peer, "connect", 1, 0, after, remedy=remedy)


def check_equal(what: str, values: Sequence[object], remedy: str, first: int = 0) -> None:
    """TransportError, the same on every rank, unless the ranks from `first` on have one value."""
    if len(set(values)) > 1:
        listed = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values, first))
        raise TransportError(f"expected the same {what} on all ranks, got {listed}; {remedy}")
