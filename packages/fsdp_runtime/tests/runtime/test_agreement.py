"""Ranks that were started differently get the same error, and nobody waits."""

import pytest
import torch
from testing.models import TiedModel
from testing.ranks import Rank, RankError, run_ranks

from sshsdp_fsdp_runtime import Update, fully_shard
from sshsdp_updates import AdamW
from sshsdp_zerosm import connect


def start(rank: Rank, build):
    model, options = build(rank.rank)
    with connect(rank.rank, rank.world, rank.store, timeout=20) as transport:
        fully_shard(model, transport=transport, **options)


def other_learning_rate(rank):
    return TiedModel(), {"updates": [Update("**", AdamW(lr=0.1 * (rank + 1)))]}


def other_width(rank):
    return TiedModel(width=5 + rank), {}


def other_options(rank):
    return TiedModel(), {"slots": 2 + rank}


@pytest.mark.parametrize(
    ("build", "part"),
    [(other_learning_rate, "rules"), (other_width, "model"), (other_options, "options")],
)
def test_different_plans_are_the_same_error_everywhere(build, part):
    with pytest.raises(RankError) as caught:
        run_ranks(start, 2, build, timeout=30)
    text = str(caught.value)
    assert text.count("expected the same plan on all ranks, got rank 1 differing from rank 0") == 2
    assert part in text


def test_a_plan_refused_on_one_rank_is_an_error_on_the_others():
    def build(rank):
        return TiedModel(), {"groups": ["layers.*"] if rank == 0 else ["nowhere.*"]}

    with pytest.raises(RankError) as caught:
        run_ranks(start, 2, build, timeout=30)
    text = str(caught.value)
    assert "rank 1 refused its plan: expected every group pattern to match a module" in text


def values(rank: Rank, sync, seeds):
    torch.manual_seed(seeds[rank.rank])
    model = TiedModel().double()
    model.shift.fill_(seeds[rank.rank])
    first = {name: value.clone() for name, value in model.state_dict().items()}
    with connect(rank.rank, rank.world, rank.store, timeout=20) as transport:
        sharded = fully_shard(model, transport=transport, sync=sync)
        result = sharded.full_state_dict()
        sharded.close()
    return first, result


def test_all_ranks_take_the_initial_values_of_rank_0():
    (first, own), (_, other) = run_ranks(values, 2, "rank0", (1, 2), timeout=30)
    for name, value in first.items():
        assert torch.equal(own[name], value)
        assert torch.equal(other[name], value)


def test_different_initial_values_are_found_when_asked_for():
    with pytest.raises(RankError) as caught:
        run_ranks(values, 2, "assert", (1, 2), timeout=30)
    assert str(caught.value).count("expected equal initial values on all ranks") >= 2
    (first, own), _ = run_ranks(values, 2, "assert", (3, 3), timeout=30)
    assert all(torch.equal(own[name], value) for name, value in first.items())
