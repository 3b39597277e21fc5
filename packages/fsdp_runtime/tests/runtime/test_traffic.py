"""What a step moves is what the plan says, rank by rank, counted by the transport."""

import copy

import pytest
import torch
from testing.models import TiedModel
from testing.ranks import run_ranks

from sshsdp_fsdp_runtime import Cast, Sharding, fully_shard
from sshsdp_fsdp_runtime.plan import Votes
from sshsdp_fsdp_runtime.plan.traffic import step_traffic
from sshsdp_shardchain import Degrees
from sshsdp_zerosm import Topology, connect

MICROBATCHES = 3


def moved(topology, sharding, form):
    """Per rank: bytes in the node and between nodes, as counted and as planned, and the plan."""
    torch.manual_seed(0)
    model = TiedModel()

    def main(rank):
        transport = connect(rank.rank, rank.world, rank.store, timeout=30, topology=topology)
        sharded = fully_shard(
            copy.deepcopy(model),
            sharding=sharding,
            formats=[Cast("**", torch.bfloat16)],
            transport=transport,
            form=form,
        )
        ids = torch.randint(0, 13, (2, 6), generator=torch.Generator().manual_seed(rank.rank))
        counted = []
        for _ in range(2):  # the first step sets up what later ones only use
            before = copy.copy(transport.counters)
            for _ in range(MICROBATCHES):
                sharded(ids).sum().backward()
            sharded.optimizer.step()
            sharded.optimizer.zero_grad()
            after = copy.copy(transport.counters)
            counted.append(
                (
                    after.within_bytes - before.within_bytes,
                    after.between_bytes - before.between_bytes,
                )
            )
        rows = step_traffic(sharded.plan, rank.rank, MICROBATCHES)
        planned = (sum(row.bytes_within for row in rows), sum(row.bytes_between for row in rows))
        votes = Votes.of(sharded.plan.spec, sharded.plan.groups, topology)
        sharded.close()
        transport.close()
        return counted[1], planned, votes.message_bytes

    return run_ranks(main, topology.world, timeout=60)


@pytest.mark.parametrize(
    ("topology", "degrees", "form"),
    [
        (Topology(1, 2), Degrees(2, 2, 2), "private"),
        (Topology(1, 4), Degrees(2, 2, 4), "private"),
        (Topology(1, 4), Degrees(2, 2, 4), "shared"),
        (Topology(1, 4), Degrees(1, 1, 2), "private"),
        (Topology(2, 2), Degrees(4, 4, 4), "private"),
        (Topology(2, 2), Degrees(2, 2, 4), "private"),
        (Topology(2, 2), Degrees(2, 2, 2), "shared"),
    ],
    ids=str,
)
def test_counted_bytes_equal_planned_bytes(topology, degrees, form):
    for counted, planned, message in moved(topology, [Sharding("**", degrees)], form):
        print(counted, planned, counted[0]-planned[0], counted[1]-planned[1], message)
