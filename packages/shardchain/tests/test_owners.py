"""Owners: deterministic, among holders, and balanced over lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_shardchain import (
    ChainHolders,
    Degrees,
    Layout,
    Owners,
    Part,
    Task,
    Units,
    exchange,
    parts,
)

D, KV, F = 4096, 1024, 14336
LLAMA_8B = [(D, D), (KV, D), (KV, D), (D, D), (F, D), (F, D), (D, F)]


def task(name, cost, *numels):
    starts = [sum(numels[:i]) for i in range(len(numels) + 1)]
    return Task(
        name, cost, tuple(Part(r, starts[r], starts[r + 1]) for r, n in enumerate(numels) if n)
    )


@given(
    st.lists(
        st.tuples(
            st.integers(0, 20),
            st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(any),
        ),
        max_size=12,
    ),
    st.randoms(),
)
def test_executors_hold_a_part_and_do_not_depend_on_the_order_of_tasks(rows, random):
    tasks = [task(f"t{i}", cost, *numels) for i, (cost, numels) in enumerate(rows)]
    owners = Owners(8)
    found = dict(zip(tasks, owners.assign(tasks, 4), strict=True))
    for item, executor in found.items():
        assert executor in {part.rank for part in item.parts}
    shuffled = list(tasks)
    random.shuffle(shuffled)
    assert dict(zip(shuffled, Owners(8).assign(shuffled, 4), strict=True)) == found
    expected = [sum(t.cost for t, e in found.items() if e == r % 4) for r in range(8)]
    assert list(owners.loads) == expected


def test_the_least_loaded_holder_works_then_the_largest_then_the_lowest():
    owners = Owners(3)
    assert owners.assign([task("a", 5, 1, 9, 0)], 3) == (1,)
    assert owners.assign([task("b", 5, 1, 9, 0)], 3) == (0,)
    assert owners.assign([task("c", 1, 2, 2, 0)], 3) == (0,)
    assert owners.loads == (6, 5, 0)


def test_units_without_a_choice_are_counted_first():
    tasks = [task("cut", 9, 4, 4), task("whole", 5, 8)]
    assert Owners(2).assign(tasks, 2) == (1, 0)


def test_loads_of_other_sets_of_replicas_count():
    owners = Owners(4)
    owners.assign([task("wide", 7, 0, 0, 8)], 4)
    assert owners.assign([task("narrow", 1, 3, 2)], 2) == (1,)
    assert owners.loads == (0, 1, 7, 1)


@pytest.mark.parametrize(("world", "goal"), [(8, 1.3), (32, 1.3)])
def test_lists_of_one_layer_of_llama_8b_are_balanced(world, goal):
    owners, moved, least = Owners(world), 0, 0
    for layer in range(32):
        members = [(f"{layer}.{i}", a * b) for i, (a, b) in enumerate(LLAMA_8B)]
        holders = ChainHolders(Layout.pack(members, Degrees(world, world, world), world))
        tasks = [
            Task(name, min(s) ** 2 * (2 * max(s) + min(s)), parts(strip, holders.of(name)))
            for (name, numel), s in zip(members, LLAMA_8B, strict=True)
            for strip in Units.pieces([numel]).strips
        ]
        executors = owners.assign(tasks, world)
        for item, executor in zip(tasks, executors, strict=True):
            unit = exchange(Units.pieces([item.numel]).strips[0], holders.of(item.name), executor)
            moved, least = moved + unit.moved, least + unit.least
    ratio = max(owners.loads) * world / sum(owners.loads)
    print(f"{world} ranks: max over average load {ratio:.3f}, moved {moved / least:.2f} of least")
    assert ratio <= goal


def test_a_task_that_nobody_holds_is_named():
    with pytest.raises(ValueError, match="expected a holder of 'ghost'"):
        Owners(2).assign([Task("ghost", 1, ())], 2)


def test_a_width_that_does_not_divide_the_world_is_refused():
    with pytest.raises(ValueError, match="divide the world of 4 ranks, got width=3"):
        Owners(4).assign([], 3)
