"""The traffic of a step: fewest bytes between nodes, once per what, and cheap at any world."""

import pytest
import torch
from torch import nn

from sshsdp_fsdp_runtime import ModelSpec, Options, Sharding, Update, build_plan
from sshsdp_fsdp_runtime.plan.alike import group_kinds
from sshsdp_fsdp_runtime.plan.traffic import step_traffic
from sshsdp_shardchain import Degrees
from sshsdp_updates import Muon, heads
from sshsdp_zerosm import Topology

LAYERS = 3
NUMEL = 512 * 256  # elements of a layer: no padding at any degree used here
LIST = 4 * NUMEL  # bytes


def plan(topology, degrees, form="private"):
    with torch.device("meta"):
        model = nn.Module()
        model.layers = nn.ModuleList(nn.Linear(256, 512, bias=False) for _ in range(LAYERS))
    return build_plan(
        ModelSpec.of(model),
        topology,
        sharding=[Sharding("**", Degrees(*degrees))],
        options=Options(form=form),
    )


def bytes_of(made, rank=0, microbatches=1):
    rows = step_traffic(made, rank, microbatches)
    return {row.purpose: (row.bytes_within, row.bytes_between) for row in rows}


def test_hierarchical_gathers_and_reductions_move_what_the_paper_says():
    # Two nodes of four ranks, ZeRO-3: a rank sends its shard once to the other node, and reads
    # everything but its own shard and what it received itself from its neighbours.
    moved = bytes_of(plan(Topology(2, 4), (8, 8, 8)))
    assert moved["gather weights"] == (2 * LAYERS * LIST * 6 // 8, 2 * LAYERS * LIST // 8)
    # It sums its own chunk and its place's chunk of the other node over three neighbours.
    assert moved["reduce gradients"] == (LAYERS * LIST * 6 // 8, LAYERS * LIST // 8)
    assert set(moved) == {"gather weights", "reduce gradients"}


def test_the_outer_level_moves_once_per_step():
    for microbatches in (1, 4):
        moved = bytes_of(plan(Topology(2, 4), (4, 4, 8)), microbatches=microbatches)
        assert moved["gather weights"] == (microbatches * 2 * LAYERS * LIST * 3 // 4, 0)
        assert moved["reduce gradients"] == (microbatches * LAYERS * LIST * 3 // 4, 0)
        assert moved["reduce sums over to ZeRO-1"] == (0, LAYERS * LIST // 8)
        assert moved["gather updated shards"] == (0, LAYERS * LIST // 8)


def test_replicas_are_summed_once_per_step():
    moved = bytes_of(plan(Topology(1, 4), (2, 2, 2)), microbatches=4)
    # Two copies of half a list: each rank reads half of its peer's half, twice.
    assert moved["sum over replicas"] == (LAYERS * LIST // 2, 0)


HEADS = heads(15)  # 34 in a tensor: three ranks can't have equally many


def odd_plan(topology, degrees, dtype=torch.bfloat16, unit=HEADS):
    with torch.device("meta"):
        model = nn.Module()
        model.layers = nn.ModuleList(nn.Linear(41, 15 * 34, bias=False) for _ in range(LAYERS))
    return build_plan(
        ModelSpec.of(model),
        topology,
        sharding=[Sharding("**", Degrees(*degrees))],
        updates=[Update("**", Muon(ns_dtype=dtype), unit=unit)],
        options=Options(form="private"),
    )


@pytest.mark.parametrize(
    ("topology", "degrees", "replicas"),
    [
        (Topology(1, 3), (3, 3, 3), 1),
        (Topology(2, 3), (3, 3, 6), 1),
        (Topology(2, 3), (3, 3, 3), 2),
    ],
)
def test_units_of_updates_are_exchanged_once_per_step(topology, degrees, replicas):
    made = odd_plan(topology, degrees)
    [muon] = made.update_plans
    for microbatches in (1, 4):
        rows = [bytes_of(made, rank, microbatches) for rank in range(topology.world)]
        moved = [row["exchange units of updates"] for row in rows]
        assert sum(map(sum, moved)) == muon.moved()[0] * replicas > 0
    between = sum(across for _, across in moved)
    assert (between > 0) == (degrees[2] > topology.ranks_per_node)


@pytest.mark.parametrize(("dtype", "each"), [(torch.bfloat16, 6), (torch.float32, 8)])
def test_a_layout_counts_what_travels_of_a_cut_unit_in_bytes(dtype, each):
    made = odd_plan(Topology(1, 3), (3, 3, 3), dtype)
    choices = [atom.layout.choice for atom in made.atoms]
    assert all(choice.exchanged_bytes == each * choice.exchanged > 0 for choice in choices)
    [muon] = made.update_plans
    assert sum(choice.exchanged_bytes for choice in choices) == muon.moved()[1]
    assert made.describe().count(f"({choices[0].exchanged_bytes} bytes)") == LAYERS


def test_a_shared_mapping_moves_no_weights():
    assert bytes_of(plan(Topology(1, 4), (4, 4, 4), "shared"))["gather weights"] == (0, 0)


def test_one_rank_moves_nothing():
    for row in step_traffic(plan(Topology(1, 1), (1, 1, 1)), 0):
        assert (row.messages_within, row.messages_between) == (0, 0)


def test_messages_are_counted_with_their_bytes():
    rows = step_traffic(plan(Topology(2, 4), (8, 8, 8)), 5, 2)
    for row in rows:
        assert row.messages_within > 0
        assert row.messages_between == row.runs  # chunks are longer than these shards


@pytest.mark.parametrize("rank", [0, 70_001, 131_071])
def test_the_largest_worlds_cost_one_rank_only(rank):
    made = plan(Topology(16_384, 8), (8, 8, 4096))
    moved = bytes_of(made, rank)
    assert moved["gather weights"][1] == 0
    assert moved["gather updated shards"][1] == moved["reduce sums over to ZeRO-1"][1] > 0


def test_groups_that_differ_in_their_name_only_are_alike():
    made = plan(Topology(1, 2), (2, 2, 2))
    assert [len(kind.groups) for kind in group_kinds(made.groups)] == [LAYERS, 1]
    with torch.device("meta"):
        model = nn.Module()
        model.layers = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 8)])
    kinds = group_kinds(build_plan(ModelSpec.of(model), 2).groups)
    assert [[g.label for g in kind.groups] for kind in kinds] == [
        ["layers.0", "layers.2"],
        ["layers.1"],
        ["root"],
    ]
