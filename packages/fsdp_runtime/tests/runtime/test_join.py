"""Ranks with different numbers of microbatches train as one process would that has them all."""

import copy

import pytest
import torch
from testing.models import TiedModel
from testing.ranks import RankError, run_ranks
from torch.distributed import PrefixStore
from torch.nn import functional

from sshsdp_fsdp_runtime import Sharding, Update, fully_shard
from sshsdp_shardchain import Degrees
from sshsdp_updates import AdamW
from sshsdp_zerosm import Topology, connect


def microbatches(world):
    """By step and rank: equal, uneven, one rank alone; in the end no rank has any."""
    steps = [(1, 1, 1, 1), (2, 0, 1, 0), (0, 3, 0, 0), (0, 0, 0, 2)]
    return [step[:world] for step in steps if any(step[:world])] + [(0,) * world]


def loss_of(model, step, microbatch, rank):
    generator = torch.Generator().manual_seed(100 * step + 10 * microbatch + rank)
    ids = torch.randint(0, 13, (2, 6), generator=generator)
    return functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def fresh():
    torch.manual_seed(0)
    return TiedModel().double()


def plain(world):
    model = fresh()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for step, counts in enumerate(microbatches(world)):
        for rank in range(world):
            for microbatch in range(counts[rank]):
                (loss_of(model, step, microbatch, rank) / world).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def train(rank, topology, case, options):
    store = PrefixStore(str(case), rank.store)
    with connect(rank.rank, rank.world, store, timeout=20, topology=topology) as transport:
        model = fully_shard(
            copy.deepcopy(fresh()),
            updates=[Update("**", AdamW(lr=1e-2))],
            transport=transport,
            **options,
        )
        steps = 0
        for step, counts in enumerate(microbatches(rank.world)):
            for microbatch in range(counts[rank.rank]):
                loss_of(model, step, microbatch, rank.rank).backward()
            passes = model.join()
            assert passes == max(counts)
            if passes == 0:
                break
            model.optimizer.step()
            model.optimizer.zero_grad()
            steps += 1
        assert steps == len(microbatches(rank.world)) - 1
        state = model.full_state_dict()
        model.close()
        return state


CASES = [
    (Topology(1, 1), [(1, 1, 1)]),
    (Topology(1, 3), [(3, 3, 3), (1, 3, 3), (1, 1, 3), (1, 1, 1)]),
    (Topology(2, 2), [(2, 2, 4), (1, 4, 4), (1, 1, 1)]),
]


@pytest.mark.parametrize(("topology", "chains"), CASES, ids=["1x1", "1x3", "2x2"])
def test_a_rank_without_data_takes_part_with_zeros(topology, chains):
    cases = [
        (
            {"sharding": [Sharding("**", Degrees(*chain))], "slots": 1 + index % 3}
            | ({"form": "private", "poison": True} if index % 2 == 0 else {"form": "auto"})
        )
        for index, chain in enumerate(chains)
    ]

    def main(rank):
        return [train(rank, topology, case, options) for case, options in enumerate(cases)]

    expected = plain(topology.world)
    for states in run_ranks(main, topology.world, timeout=60):
        for state in states:
            for name, value in expected.items():
                torch.testing.assert_close(state[name], value, rtol=1e-10, atol=1e-12)


def test_a_rank_that_does_not_join_is_a_named_error_everywhere():
    def main(rank):
        transport = connect(rank.rank, rank.world, rank.store, timeout=10)
        model = fully_shard(fresh(), transport=transport)
        loss_of(model, 0, 0, rank.rank).backward()
        if rank.rank:
            model.join()
        model.optimizer.step()

    with pytest.raises(RankError) as caught:
        run_ranks(main, 2, timeout=20)
    assert str(caught.value).count("expected every rank to call join() before gradients") >= 2


def test_weights_that_are_gathered_between_nodes_are_refused_by_every_rank():
    def main(rank):
        topology = Topology(2, 1)
        transport = connect(rank.rank, rank.world, rank.store, timeout=10, topology=topology)
        model = fully_shard(
            fresh(), sharding=[Sharding("**", Degrees(2, 2, 2))], transport=transport
        )
        with pytest.raises(RuntimeError, match=r"got zero3=2 with 1 ranks per node; choose a"):
            model.join()
        model.close()
        transport.close()

    run_ranks(main, 2, timeout=20)
