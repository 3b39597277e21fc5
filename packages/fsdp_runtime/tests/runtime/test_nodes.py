"""Several nodes: the mathematics of plain PyTorch, whoever may address whose memory."""

import pytest

from sshsdp_fsdp_runtime import Sharding
from sshsdp_shardchain import Degrees
from sshsdp_zerosm import Topology

from .test_parity import check_all

CASES = [
    (Topology(2, 2), [(4, 4, 4), (2, 2, 4), (1, 2, 4), (2, 2, 2), (1, 1, 1)]),
    # (3, 3, 3): groups with two members on one node and one on another
    (Topology(3, 2), [(6, 6, 6), (2, 2, 6), (3, 3, 3)]),
    (Topology(3, 1), [(3, 3, 3), (1, 1, 3)]),  # nothing but messages
]
FULL = [
    (Topology(2, 2), [(2, 4, 4), (1, 4, 4)]),
    (Topology(3, 2), [(1, 3, 6)]),
]


@pytest.mark.parametrize(
    ("topology", "chains", "fewest"),
    [
        *((*case, 2) for case in CASES),
        *(pytest.param(*case, 3, marks=pytest.mark.full) for case in (*CASES, *FULL)),
    ],
    ids=lambda value: str(value) if isinstance(value, Topology) else "",
)
def test_weights_equal_those_of_plain_pytorch(topology, chains, fewest):
    # Three steps of three microbatches for the first chain; what the third of either does, the
    # second did, so that other chains take `fewest`.
    runs = []
    for chain, least in zip(chains, [3] + [fewest] * (len(chains) - 1), strict=True):
        sharding = [Sharding("**", Degrees(*chain))]
        runs.append((sharding, "private", least, least))
        if topology.ranks_per_node % chain[0] == 0:
            runs.append((sharding, "shared", 1, least))
    check_all(topology, runs)


def test_parameter_sets_with_degrees_of_their_own():
    sharding = [
        Sharding("layers.*.up.**", Degrees(1, 2, 4)),
        Sharding("layers.0.**", Degrees(4, 4, 4)),
        Sharding("layers.**", Degrees(2, 2, 4)),
        Sharding("gain", Degrees.for_ddp()),
        Sharding("**", Degrees.for_hsdp(2)),
    ]
    check_all(Topology(2, 2), [(sharding, "private", 2, 2)])
