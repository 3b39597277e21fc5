"""Which ranks share a node."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topology:
    """Equal nodes; ranks are numbered node by node.

    Ranks of one node address each other's memory; between nodes there are only puts and signals.

    Attributes:
        nodes: number of nodes.
        ranks_per_node: number of ranks on each of them.
    """

    nodes: int
    ranks_per_node: int

    def __post_init__(self) -> None:
        numbers = self.nodes, self.ranks_per_node
        if not all(isinstance(number, int) and number >= 1 for number in numbers):
            raise ValueError(
                f"expected at least one node and one rank per node, got {self.nodes!r} nodes of "
                f"{self.ranks_per_node!r} ranks; give both as ints"
            )

    @classmethod
    def single(cls, world: int) -> "Topology":
        """All ranks on one node."""
        return cls(1, world)

    def __str__(self) -> str:
        return f"{self.nodes}x{self.ranks_per_node}"

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node

    def node_of(self, rank: int) -> int:
        """The node of a rank."""
        self._check("rank", rank, self.world)
        return rank // self.ranks_per_node

    def local_rank(self, rank: int) -> int:
        """The place of a rank among the ranks of its node."""
        self._check("rank", rank, self.world)
        return rank % self.ranks_per_node

    def ranks_of(self, node: int) -> range:
        """The ranks of a node."""
        self._check("node", node, self.nodes)
        return range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node)

    def _check(self, what: str, value: int, limit: int) -> None:
        if not 0 <= value < limit:
            raise ValueError(f"topology {self}: expected a {what} below {limit}, got {value}")
