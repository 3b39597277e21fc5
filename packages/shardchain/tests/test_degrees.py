"""The well-known cases by name: who holds what copies follows from their definitions."""

import pytest

from sshsdp_shardchain import Degrees, Level, ShardChain

SHARDED = {  # what each stage of ZeRO cuts, by its definition
    "ddp": (),
    "zero1": (Level.ZERO1,),
    "zero2": (Level.ZERO1, Level.ZERO2),
    "zero3": (Level.ZERO1, Level.ZERO2, Level.ZERO3),
}


def degrees_of(stage, ranks):
    make = getattr(Degrees, f"for_{stage}")
    return make() if stage == "ddp" else make(ranks)


@pytest.mark.parametrize("ranks", [1, 2, 6])
@pytest.mark.parametrize("stage", SHARDED)
def test_a_stage_cuts_its_levels_over_all_ranks_and_no_other(stage, ranks):
    chain = ShardChain(24, degrees_of(stage, ranks), ranks)
    for level in Level:
        held = chain.range(level, 0).numel
        assert held == (24 // ranks if level in SHARDED[stage] else 24)


def test_hybrid_sharding_repeats_whole_shards_over_neighbouring_ranks():
    chain = ShardChain(12, Degrees.for_hsdp(4), 12)
    for level in (Level.ZERO3, Level.ZERO2, Level.ZERO1):
        assert chain.replicas(level, 5) == (1, 5, 9)
        assert chain.members(Level.FULL, level, 5) == (4, 5, 6, 7)


def test_outer_zero1_cuts_the_shards_of_a_node_over_the_nodes():
    chain = ShardChain(24, Degrees.for_outer_zero1(4, 12), 12)
    assert chain.group(Level.ZERO3, 5) == (4, 5, 6, 7)
    assert chain.group(Level.ZERO2, 5) == (5,)
    assert chain.group(Level.ZERO1, 5) == (1, 5, 9)
    assert chain.replicas(Level.ZERO1, 5) == (5,)


def test_names_stand_for_the_degrees_of_the_documentation():
    assert Degrees.for_ddp() == Degrees(1, 1, 1)
    assert Degrees.for_zero1(6) == Degrees(1, 1, 6)
    assert Degrees.for_zero2(6) == Degrees(1, 6, 6)
    assert Degrees.for_zero3(6) == Degrees.for_hsdp(6) == Degrees(6, 6, 6)
    assert Degrees.for_outer_zero1(2, 6) == Degrees(2, 2, 6)
    with pytest.raises(ValueError, match="expected each degree to divide the next"):
        Degrees.for_outer_zero1(4, 6)
