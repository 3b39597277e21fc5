"""Where the ranks find out about each other, before any of them connects."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sshsdp_zerosm.card import Card, check_equal, trade_cards
from sshsdp_zerosm.errors import TransportError
from sshsdp_zerosm.topology import Topology


@dataclass(frozen=True)
class Meeting:
    """What every rank knows about all ranks.

    Attributes:
        rank: this rank.
        cards: of all ranks.
        topology: which of them share a node.
        store: a part of the store that no other connection uses; None in a world of one.
        timeout: seconds that a wait may take.
    """

    rank: int
    cards: tuple[Card, ...]
    topology: Topology
    store: Any
    timeout: float

    @property
    def hosts(self) -> tuple[object, ...]:
        """The machine of every rank."""
        return tuple(card.host for card in self.cards)

    @property
    def neighbours(self) -> int:
        """Number of ranks on this rank's machine, this one included."""
        return self.hosts.count(self.hosts[self.rank])


def meet(rank: int, own: Card, store: Any, timeout: float, topology: Topology | None) -> Meeting:
    """Learn who the others are; every rank comes to the same topology, or to the same error.

    Args:
        rank: this rank.
        own: this rank's card.
        store: a torch.distributed store that all ranks share; None in a world of one.
        timeout: seconds to wait for each other rank.
        topology: None takes what the kind of transport and the hosts say.

    Raises:
        WaitTimeoutError: some rank didn't come.
        TransportError: ranks that asked for different things, or can't share a node.
    """
    cards, part = [own], None
    if store is not None:
        # Imported here because planning doesn't need it.
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        cards, prefix = trade_cards(rank, own, store, timeout)
        part = PrefixStore(prefix, store)
    if topology is None:
        topology = _default_topology(cards, own.kind)
    _check_nodes(cards, topology)
    return Meeting(rank, tuple(cards), topology, part, timeout)


def _default_topology(cards: Sequence[Card], kind: str) -> Topology:
    if kind == "process_group":
        return Topology(len(cards), 1)
    if kind == "shared_memory":
        return Topology.single(len(cards))
    return _real_topology(cards)


def _real_topology(cards: Sequence[Card]) -> Topology:
    """One node per host; TransportError unless they are equal and numbered host by host."""
    ranks: dict[tuple[str, str, str], list[int]] = {}
    for rank, card in enumerate(cards):
        ranks.setdefault(card.host, []).append(rank)
    topology = Topology(len(ranks), max(map(len, ranks.values())))
    expected = [list(topology.ranks_of(node)) for node in range(topology.nodes)]
    if list(ranks.values()) != expected:
        listed = "; ".join(
            f"ranks {', '.join(map(str, found))} on {'/'.join(host)}"
            for host, found in ranks.items()
        )
        raise TransportError(
            f"expected as many ranks on every host, numbered host by host, got {listed}: start "
            f"the same number everywhere, in that order, or pass topology="
        )
    return topology


def _check_nodes(cards: Sequence[Card], topology: Topology) -> None:
    """TransportError, the same on every rank, unless the ranks of each node can share memory."""
    if topology.ranks_per_node == 1:
        return
    for node in range(topology.nodes):
        members = [cards[rank] for rank in topology.ranks_of(node)]
        first = topology.ranks_of(node).start
        check_equal(
            "host (boot id, network namespace, process-id namespace)",
            [card.host for card in members],
            "shared memory needs all ranks of a node on one host and in one container",
            first,
        )
        check_equal(
            "user id", [card.uid for card in members], "start all ranks as the same user", first
        )
