"""A group's members by node: who is next to whom, and who acts for a node."""

from dataclasses import dataclass
from functools import cached_property

from sshsdp_zerosm.builders.group import Group
from sshsdp_zerosm.topology import Topology


@dataclass(frozen=True)
class Placement:
    """Members are named by their *place* in the group, nodes by their order of first appearance.

    What a member and another node exchange goes through that node's *agent* for the member: the
    one with the same place among its node's members, wrapping around on a smaller node.
    """

    group: Group
    topology: Topology

    @classmethod
    def of(cls, ranks: tuple[int, ...], topology: Topology) -> "Placement":
        """Of distinct ranks of the topology's world, in buffer order."""
        return cls(Group(ranks, topology.world), topology)

    @cached_property
    def nodes(self) -> tuple[tuple[int, ...], ...]:
        """Places on each node that has any, in group order."""
        found: dict[int, list[int]] = {}
        for place, rank in enumerate(self.group.ranks):
            found.setdefault(rank // self.topology.ranks_per_node, []).append(place)
        return tuple(map(tuple, found.values()))

    @cached_property
    def _where(self) -> dict[int, tuple[int, int]]:
        return {
            place: (node, local)
            for node, places in enumerate(self.nodes)
            for local, place in enumerate(places)
        }

    def node(self, place: int) -> int:
        """Which node a member is on."""
        return self._where[place][0]

    def foreign(self, place: int) -> tuple[int, ...]:
        """The other nodes, the own one's successor first, so that not all start at the same one."""
        own = self.node(place)
        return tuple((own + step) % len(self.nodes) for step in range(1, len(self.nodes)))

    def siblings(self, place: int) -> tuple[int, ...]:
        """The other members of the node, starting after this one and wrapping around."""
        node, local = self._where[place]
        places = self.nodes[node]
        return places[local + 1 :] + places[:local]

    def agent(self, node: int, place: int) -> int:
        """Who exchanges with `place` for another node."""
        places = self.nodes[node]
        return places[self._where[place][1] % len(places)]

    def agents(self, place: int) -> tuple[int, ...]:
        """The agents for `place` on the other nodes, in the order of `foreign`."""
        return tuple(self.agent(node, place) for node in self.foreign(place))

    def clients(self, place: int, node: int) -> tuple[int, ...]:
        """The members of another node that `place` is the agent for."""
        own, local = self._where[place]
        return self.nodes[node][local :: len(self.nodes[own])]

    def all_clients(self, place: int) -> tuple[int, ...]:
        """The members of all other nodes that `place` is the agent for, as in `foreign`."""
        return tuple(client for node in self.foreign(place) for client in self.clients(place, node))

    def ranks(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """The ranks of members."""
        return tuple(self.group.ranks[place] for place in places)
