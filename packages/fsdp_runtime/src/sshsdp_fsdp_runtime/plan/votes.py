"""Memory and messages with which ranks agree on their backward passes."""

from collections.abc import Sequence
from dataclasses import dataclass

from sshsdp_fsdp_runtime.plan.group import GroupPlan
from sshsdp_fsdp_runtime.plan.model_spec import ModelSpec
from sshsdp_zerosm import Op, Put, Region, Schedule, Signal, Topology, Wait

HEADER_BYTES = 18  # lowest and highest kind (1 byte each) and count of passes (8 each)
LIVE_BYTES = 16  # what a rank shows when it opens a turn: the kind of it, and a count


@dataclass(frozen=True, slots=True)
class Votes:
    """Every rank posts one message per turn; all of them are merged, within nodes first.

    Before, as soon as it knows what kind of turn this is for itself, it opens the turn by showing
    two live numbers, which the others may wait for before they decide what theirs is.

    A rank's memory holds, one after another: the live numbers of all ranks; its own message; where
    there are several nodes also the merged message of its node, and those of the other nodes as
    they arrive. Messages are doubled: a rank posts turn n + 1 only after it has collected turn n,
    hence after everybody has posted turn n and has read turn n - 1.

    Attributes:
        message_bytes: length of a message.
        topology: how the ranks lie on nodes.
    """

    message_bytes: int
    topology: Topology

    @classmethod
    def of(cls, spec: ModelSpec, groups: Sequence[GroupPlan], topology: Topology) -> "Votes":
        """Messages with one bit per group or per parameter."""
        widest = max(len(groups), len(spec.parameters))
        return cls(HEADER_BYTES + (widest + 7) // 8, topology)

    @property
    def nbytes(self) -> int:
        """Bytes on every rank."""
        nodes = self.topology.nodes
        return self._messages + 2 * self.message_bytes * (1 if nodes == 1 else 2 + nodes)

    def live(self, rank: int) -> slice:
        """The live numbers of `rank`."""
        return slice(rank * LIVE_BYTES, (rank + 1) * LIVE_BYTES)

    def own(self, turn: int) -> slice:
        """A rank's own message."""
        return self._message(turn, 0)

    def node(self, turn: int) -> slice:
        """The merged message of a rank's node."""
        return self._message(turn, 1)

    def arrived(self, turn: int, node: int) -> slice:
        """The merged message of another node."""
        return self._message(turn, 2 + node)

    def schedule(self, arena: str) -> Schedule:
        """Phases of a turn: "open", "opened", "post", "collect"; between nodes "send0", "arrive".

        In every other turn "send0" is "send1".
        """
        channels = opened, posted, rails = [f"{arena}.{c}" for c in ("opened", "posted", "rails")]
        topology = self.topology

        def others(rank: int) -> tuple[int, ...]:
            return tuple(peer for peer in range(topology.world) if peer != rank)

        def peers(rank: int) -> tuple[int, ...]:
            node = topology.node_of(rank)
            return tuple(peer for peer in topology.ranks_of(node) if peer != rank)

        def foreign(rank: int) -> list[int]:
            own = topology.node_of(rank)
            return [peer for peer in range(topology.world) if topology.node_of(peer) != own]

        def rail(rank: int) -> tuple[int, ...]:
            local = topology.local_rank(rank)
            return tuple(peer for peer in foreign(rank) if topology.local_rank(peer) == local)

        def put(rank: int, peer: int, source: slice, target: slice) -> Put:
            return Put(_region(arena, rank, source), _region(arena, peer, target))

        def open_turn(rank: int) -> Sequence[Op]:
            live = self.live(rank)
            shown = [put(rank, peer, live, live) for peer in foreign(rank)]
            return [*shown, Signal(opened, others(rank))]

        def send(rank: int, turn: int) -> Sequence[Op]:
            target = self.arrived(turn, topology.node_of(rank))
            moves = [put(rank, peer, self.node(turn), target) for peer in rail(rank)]
            return [*moves, Signal(rails, rail(rank))]

        return Schedule(
            arena,
            topology.world,
            {
                "open": open_turn,
                "opened": lambda rank: [Wait(peer, opened) for peer in others(rank)],
                "post": lambda rank: [Signal(posted, peers(rank))],
                "collect": lambda rank: [Wait(peer, posted) for peer in peers(rank)],
                "send0": lambda rank: send(rank, 0),
                "send1": lambda rank: send(rank, 1),
                "arrive": lambda rank: [Wait(peer, rails) for peer in rail(rank)],
            },
            tuple(channels),
            unordered=frozenset({"opened"}),  # some ranks look, others know already
        )

    @property
    def _messages(self) -> int:
        return self.topology.world * LIVE_BYTES

    def _message(self, turn: int, index: int) -> slice:
        start = self._messages + (2 * index + turn % 2) * self.message_bytes
        return slice(start, start + self.message_bytes)


def _region(arena: str, rank: int, bytes_: slice) -> Region:
    return Region(arena, rank, bytes_.start, bytes_.stop - bytes_.start)
