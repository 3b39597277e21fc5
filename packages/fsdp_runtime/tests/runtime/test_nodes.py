"""Several nodes: the mathematics of plain PyTorch, whoever may address whose memory."""

from dataclasses import astuple

import pytest

from sshsdp_fsdp_runtime import Sharding
from sshsdp_shardchain import Degrees
from sshsdp_zerosm import Topology

from .test_parity import check, on_all

CASES = [
    (Topology(2, 2), Degrees(4, 4, 4)),
    (Topology(2, 2), Degrees(2, 2, 4)),
    (Topology(2, 2), Degrees(1, 2, 4)),
    (Topology(2, 2), Degrees(2, 2, 2)),
    (Topology(2, 2), Degrees(1, 1, 1)),
    (Topology(3, 2), Degrees(6, 6, 6)),
    (Topology(3, 2), Degrees(2, 2, 6)),
    (Topology(3, 2), Degrees(3, 3, 3)),  # groups with two members on one node and one on another
    (Topology(3, 1), Degrees(3, 3, 3)),  # nothing but messages
    (Topology(3, 1), Degrees(1, 1, 3)),
]
FULL = [
    (Topology(2, 2), Degrees(2, 4, 4)),
    (Topology(2, 2), Degrees(1, 4, 4)),
    (Topology(3, 2), Degrees(1, 3, 6)),
]


def named(topology, degrees, marks=()):
    return pytest.param(
        topology, degrees, id=f"{topology}-{''.join(map(str, astuple(degrees)))}", marks=marks
    )


@pytest.mark.parametrize(
    ("topology", "degrees"),
    [*(named(*case) for case in CASES), *(named(*case, pytest.mark.full) for case in FULL)],
)
def test_weights_equal_those_of_plain_pytorch(topology, degrees):
    runs = [("private", 3)]
    if topology.ranks_per_node % degrees.zero3 == 0:
        runs.append(("shared", 1))
    for results, (_, microbatches) in zip(
        on_all(topology, [Sharding("**", degrees)], runs), runs, strict=True
    ):
        check(results, topology.world, microbatches)


def test_parameter_sets_with_degrees_of_their_own():
    sharding = [
        Sharding("layers.*.up.**", Degrees(1, 2, 4)),
        Sharding("layers.0.**", Degrees(4, 4, 4)),
        Sharding("layers.**", Degrees(2, 2, 4)),
        Sharding("gain", Degrees.for_ddp()),
        Sharding("**", Degrees.for_hsdp(2)),
    ]
    [results] = on_all(Topology(2, 2), sharding, [("private", 3)])
    check(results, 4, 3)
