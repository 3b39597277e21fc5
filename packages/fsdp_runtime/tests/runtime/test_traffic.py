"""What a step moves is what the plan says, rank by rank, counted by the transport."""

import copy

import pytest
import torch
from testing.models import TiedModel
from testing.ranks import run_ranks

from sshsdp_fsdp_runtime import Cast, Sharding, Update, fully_shard, is_matrix, step_traffic
from sshsdp_shardchain import Degrees
from sshsdp_updates import AdamW, Muon, NorMuon, columns
from sshsdp_zerosm import Topology, connect

MICROBATCHES = 2


AGREEMENT = 128  # more than ranks send each other per pass to agree on it, which is not planned


UPDATES = {
    "adamw": [Update("**", AdamW())],
    "muon": [
        Update("**.up.weight", MUON := Muon(), unit=columns(1)),
        Update("**", MUON, where=is_matrix),
        Update("**", AdamW()),
    ],
    "normuon": [Update("**", NorMuon(), where=is_matrix), Update("**", AdamW())],
}


def step(rank, transport, model, degrees, form, updates="adamw"):
    """Bytes in the node and between nodes of a step of this rank: as counted, as planned."""
    sharded = fully_shard(
        copy.deepcopy(model),
        sharding=[Sharding("**", degrees)],
        formats=[Cast("**", torch.bfloat16)],
        updates=UPDATES[updates],
        transport=transport,
        form=form,
    )
    ids = torch.randint(0, 13, (2, 6), generator=torch.Generator().manual_seed(rank.rank))
    for _ in range(2):  # the first step sets up what later ones only use
        before = copy.copy(transport.counters)
        for _ in range(MICROBATCHES):
            sharded(ids).sum().backward()
        sharded.optimizer.step()
        sharded.optimizer.zero_grad()
        after = copy.copy(transport.counters)
    rows = step_traffic(sharded.plan, rank.rank, MICROBATCHES)
    sharded.close()
    counted = (
        after.within_bytes - before.within_bytes,
        after.between_bytes - before.between_bytes,
    )
    for row in rows:
        if row.purpose == "exchange units of updates":
            assert row.bytes_within + row.bytes_between > 0
    assert (updates != "adamw") == ("exchange units of updates" in {row.purpose for row in rows})
    return counted, (sum(r.bytes_within for r in rows), sum(r.bytes_between for r in rows))


@pytest.mark.parametrize(
    ("topology", "cases"),
    [
        (
            Topology(1, 4),
            [
                (Degrees(4, 4, 4), "private"),
                (Degrees(2, 2, 4), "private"),
                (Degrees(1, 2, 4), "private"),
                (Degrees(1, 1, 2), "private"),
                (Degrees(2, 2, 4), "shared"),
                (Degrees(4, 4, 4), "shared", "muon"),
                (Degrees(1, 2, 2), "private", "muon"),
                (Degrees(2, 2, 4), "private", "normuon"),
            ],
        ),
        (
            Topology(2, 2),
            [
                (Degrees(4, 4, 4), "private"),
                (Degrees(2, 2, 4), "private"),
                (Degrees(2, 2, 2), "shared"),
                (Degrees(2, 2, 4), "shared", "muon"),
                (Degrees(4, 4, 4), "private", "normuon"),
            ],
        ),
    ],
    ids=str,
)
def test_counted_bytes_equal_planned_bytes(topology, cases):
    torch.manual_seed(0)
    model = TiedModel()

    def main(rank):
        with connect(rank.rank, rank.world, rank.store, timeout=30, topology=topology) as transport:
            return [step(rank, transport, model, *case) for case in cases]

    for results in run_ranks(main, topology.world, timeout=60):
        for (within, between), (planned_within, planned_between) in results:
            assert within == planned_within
            assert between - planned_between >= 0
            spare = 0 if topology.nodes == 1 else AGREEMENT * (MICROBATCHES + 1)
            assert between - planned_between <= spare
