"""What a rank tells the others about itself, through the store."""

import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from sshsdp_zerosm.errors import TransportError, WaitTimeoutError


@dataclass(frozen=True, slots=True)
class Card:
    """One rank's identity and where it listens.

    Attributes:
        world: the world that it was started with.
        host: boot id and inodes of network and process-id namespace; ranks can reach each other's
            abstract sockets and pids only if these are equal.
        pid: process id.
        uid: user id.
        address: name of its abstract socket, hexadecimal; random, so that it can't be foreseen.
        token: what a peer must say when it connects.
    """

    world: int
    host: tuple[str, str, str]
    pid: int
    uid: int
    address: str
    token: str

    @classmethod
    def own(cls, world: int) -> "Card":
        """The card of this process."""
        return cls(
            world=world,
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
    """(boot id, network namespace, process-id namespace) of this process."""
    return (
        Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        os.readlink("/proc/self/ns/net"),
        os.readlink("/proc/self/ns/pid"),
    )


def trade_cards(rank: int, own: Card, store: Any, timeout: float) -> list[Card]:
    """Publish `own` and read everyone's.

    Args:
        rank: this rank.
        own: this rank's card.
        store: a torch.distributed store that all ranks share.
        timeout: seconds to wait for each other rank.

    Raises:
        WaitTimeoutError: some rank didn't come.
        TransportError: ranks that can't share memory (the same error on every rank).
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
            raise WaitTimeoutError(rank, peer, "connect", 1, 0, timeout) from error
        fields = json.loads(store.get(key))
        cards.append(Card(**fields | {"host": tuple(fields["host"])}))
    check_cards(cards)
    return cards


def check_cards(cards: Sequence[Card]) -> None:
    """TransportError unless all ranks are of one world, host and user."""
    for what, values, remedy in (
        ("world", [card.world for card in cards], "start all ranks with the same world"),
        (
            "host (boot id, network namespace, process-id namespace)",
            [card.host for card in cards],
            "shared memory needs all ranks on one host and in one container",
        ),
        ("user id", [card.uid for card in cards], "start all ranks as the same user"),
    ):
        if len(set(values)) > 1:
            listed = ", ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))
            raise TransportError(f"expected the same {what} on all ranks, got {listed}; {remedy}")
