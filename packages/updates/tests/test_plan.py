"""A plan says who works on what and what moves, alike on every rank, without tensors."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sshsdp_shardchain import ChainHolders, Degrees, Layout
from sshsdp_updates import (
    AdamW,
    Message,
    Muon,
    NorMuon,
    PlanList,
    PlanMember,
    columns,
    heads,
    plan_updates,
    whole,
)
from sshsdp_updates.slot import lay_out, part_nbytes
from sshsdp_updates.traffic import Traffic


def one_list(members, degrees, world, name="list", dtype=torch.float32):
    sizes = [(member, torch.Size(shape).numel()) for member, (shape, _) in members.items()]
    holders = ChainHolders(Layout.pack(sizes, degrees, world))
    planned = tuple(PlanMember(member, *what) for member, what in members.items())
    return PlanList(name, dtype, planned, holders)


class Copying(Muon):
    """A rule whose stages over elements allocate more than those over units."""

    def element_scratch(self, dtype):
        return 1000 * dtype.itemsize


@st.composite
def plans(draw):
    world = draw(st.sampled_from([1, 2, 3, 4, 6]))
    lists = []
    for index in range(draw(st.integers(1, 3))):
        zero1 = draw(st.sampled_from([d for d in range(1, world + 1) if world % d == 0]))
        members = {}
        for number in range(draw(st.integers(1, 3))):
            unit, rows, cols = draw(
                st.sampled_from([(whole(), 3, 5), (heads(2), 6, 3), (columns(3), 2, 9)])
            )
            members[f"{index}.{number}"] = ((rows * draw(st.integers(0, 2)), cols), unit)
        lists.append(one_list(members, Degrees(1, 1, zero1), world, f"list{index}"))
    rule = draw(st.sampled_from([Muon(), Copying(), NorMuon(ns_dtype=torch.float32)]))
    return plan_updates(rule, lists, world, limit=draw(st.sampled_from([1, 500, 10**9])))


def traffic(plan):
    """All messages by (wave, stage, way) and rank."""
    found = {}
    for rank in range(plan.world):
        own = Traffic(plan, rank)
        for wave in range(len(plan.waves)):
            for stage in plan.rule.stages():
                ways = {"units": ("gather", "give_back"), "reduce": ("lend",)}
                for way in ways.get(stage.kind.value, ()):
                    messages = getattr(own, way)(stage, wave)
                    found.setdefault((wave, stage.name, way), {})[rank] = messages
    return found


def calls_of(plan, rank, wave):
    """What calls over one wave allocate: a batch of units of one shape each, or all elements."""
    slot, rule = lay_out(plan, rank, wave), plan.rule
    for batch in slot.batches:
        yield len(batch.units) * rule.unit_scratch(batch.shape, batch.dtype)
    dtypes = [plan.lists[item.unit.list].dtype for item in slot.held]
    yield sum(
        item.part.numel * rule.element_scratch(dtype)
        for item, dtype in zip(slot.held, dtypes, strict=True)
    )


@given(plans())
@settings(max_examples=60)
def test_scratch_is_that_of_the_largest_call(plan):
    most = max(
        (
            nbytes
            for rank in range(plan.world)
            for wave in range(len(plan.waves))
            for nbytes in calls_of(plan, rank, wave)
        ),
        default=0,
    )
    assert most <= plan.scratch_nbytes
    if len({item.holders.width for item in plan.lists}) == 1:  # else it is an upper bound
        assert most == plan.scratch_nbytes


def test_calls_over_elements_have_those_of_all_units_of_a_wave():
    matrices = {name: ((3, 5), whole()) for name in "abc"}
    plan = plan_updates(Copying(), [one_list(matrices, Degrees(1, 1, 1), 1)], 1)
    assert plan.scratch_nbytes == 3 * 15 * Copying().element_scratch(torch.float32)


@given(plans())
@settings(max_examples=60)
def test_every_rank_lists_exactly_its_own_messages(plan):
    for by_rank in traffic(plan).values():
        everything = {message for messages in by_rank.values() for message in messages}
        for rank, messages in by_rank.items():
            assert messages == sorted(m for m in everything if rank in (m.source, m.target))
            assert len(set(messages)) == len(messages)


@given(plans())
@settings(max_examples=60)
def test_no_byte_is_received_twice_nor_beyond_the_slot(plan):
    for (wave, _, _), by_rank in traffic(plan).items():
        first = wave % 2 * plan.slot_nbytes
        for rank, messages in by_rank.items():
            spans = sorted((m.target_offset, m.nbytes) for m in messages if m.target == rank)
            spans += [(first + plan.slot_nbytes, 0)]
            assert all(start >= first for start, _ in spans)
            for (start, nbytes), (after, _) in pairwise(spans):
                assert start + nbytes <= after


@given(plans())
@settings(max_examples=60)
def test_bytes_moved_are_those_of_the_messages(plan):
    """Every set of replicas of every list moves its own."""
    total = sum(
        message.nbytes
        for by_rank in traffic(plan).values()
        for rank, messages in by_rank.items()
        for message in messages
        if message.source == rank
    )
    expected = 0
    for index, item in enumerate(plan.lists):
        alone = replace(plan, units=tuple(unit for unit in plan.units if unit.list == index))
        expected += alone.moved()[0] * (plan.world // item.holders.width)
    assert total == expected


@given(plans())
@settings(max_examples=60)
def test_areas_of_a_slot_fit_and_are_as_large_as_was_counted(plan):
    for rank in range(plan.world):
        for wave in range(len(plan.waves)):
            slot = lay_out(plan, rank, wave)
            counted = sum(
                part_nbytes(plan.fields, item.unit, item.part, plan.lists[item.unit.list].dtype)
                for item in slot.held
            )
            assert slot.nbytes == counted <= plan.slot_nbytes


@given(plans())
@settings(max_examples=60)
def test_waves_cover_every_unit_once_and_executors_hold_a_part(plan):
    assert [index for wave in plan.waves for index in wave] == list(range(len(plan.units)))
    for unit in plan.units:
        assert unit.executor in {part.rank for part in unit.parts}


def paper():
    """Four heads behind a norm, in one list over four ranks as two nodes of two."""
    members = {"norm": ((12,), whole()), "q": ((8, 6), heads(2))}
    item = one_list(members, Degrees(2, 2, 4), 4)
    muon = replace(item, members=item.members[1:])
    return plan_updates(Muon(), [muon], 4)


def test_a_head_on_two_ranks_moves_there_and_back_and_nothing_else():
    # 60 elements in chunks of 15, on ranks 0, 2, 1, 3; q begins at 12: heads at 12, 24, 36, 48.
    plan = paper()
    held = [[(p.rank, p.numel) for p in unit.parts] for unit in plan.units]
    assert held == [[(0, 3), (2, 9)], [(2, 6), (1, 6)], [(1, 9), (3, 3)], [(3, 12)]]
    # The last head leaves no choice; the others go to the least loaded, then the largest holder.
    assert [unit.executor for unit in plan.units] == [2, 1, 1, 3]
    iterate = plan.rule.stages()[1]
    u, v = 2, 4  # bytes of bf16 and fp32
    sent = {
        rank: [
            (m.source, m.target, m.nbytes)
            for m in Traffic(plan, rank).gather(iterate, 0)
            if m.source == rank
        ]
        for rank in range(4)
    }
    assert sent == {0: [(0, 2, 3 * u)], 1: [], 2: [(2, 1, 6 * u)], 3: [(3, 1, 3 * u)]}
    back = [m for m in Traffic(plan, 2).give_back(iterate, 0) if m.source == 2]
    assert [(m.source, m.target, m.nbytes) for m in back] == [(2, 0, 3 * v)]
    assert plan.moved() == (12 * (u + v), 12 * (u + v))
    assert all(isinstance(message, Message) for message in back)


def test_operands_of_unlike_unit_counts_are_both_named():
    stages = Muon().stages()
    operands = (stages[1].operands[0], replace(stages[1].operands[1], unit=whole()))

    class Wrong(Muon):
        def stages(self):
            return (stages[0], replace(stages[1], operands=operands), stages[2])

    item = one_list({"q": ((8, 6), heads(2))}, Degrees(1, 1, 2), 2)
    text = r"'orthogonalize', tensor 'q'.*got 4 of 'u' \(own\) and 1 of 'v' \(whole\(\)\)"
    with pytest.raises(ValueError, match=text):
        plan_updates(Wrong(), [item], 2)


def test_equally_many_units_of_other_elements_are_refused():
    stages = Muon().stages()
    operands = (
        replace(stages[1].operands[0], unit=heads(4)),
        replace(stages[1].operands[1], unit=columns(3)),
    )

    class Wrong(Muon):
        def stages(self):
            return (stages[0], replace(stages[1], operands=operands), stages[2])

    item = one_list({"q": ((8, 6), whole())}, Degrees(1, 1, 2), 2)
    with pytest.raises(ValueError, match=r"columns\(3\) for 'v' and heads\(4\) for 'u'"):
        plan_updates(Wrong(), [item], 2)


def test_a_unit_that_a_rule_cannot_work_on_is_named():
    item = one_list({"bias": ((8,), whole())}, Degrees(1, 1, 2), 2)
    with pytest.raises(ValueError, match=r"rule 'muon', tensor 'bias' of shape \(8,\).*matrices"):
        plan_updates(Muon(), [item], 2)


def test_a_plan_describes_itself_and_signs_everything_that_ranks_must_share():
    plan = paper()
    assert "4 units, 3 of them cut, world 4" in plan.describe()
    assert "moved per step: 72 bytes, 1.00 of the least" in plan.describe()
    assert paper().signature() == plan.signature()
    others = [
        replace(plan, waves=(range(2), range(2, 4))),
        replace(plan, slot_nbytes=plan.slot_nbytes + 64),
        replace(plan, rule=NorMuon()),
        replace(plan, units=(replace(plan.units[0], executor=0), *plan.units[1:])),
    ]
    assert len({plan.signature(), *(other.signature() for other in others)}) == 5


def test_rules_over_elements_need_no_plan_for_units():
    item = one_list({"bias": ((8,), whole())}, Degrees(1, 1, 2), 2)
    plan = plan_updates(AdamW(), [item], 2)
    assert (plan.units, plan.waves, plan.nbytes, plan.moved()) == ((), (), 0, (0, 0))
    assert plan.balance() == 1.0


D, KV, F = 4096, 1024, 14336
LLAMA_8B = {
    "q": ((D, D), whole()),
    "k": ((KV, D), whole()),
    "v": ((KV, D), whole()),
    "o": ((D, D), whole()),
    "gate": ((F, D), whole()),
    "up": ((F, D), whole()),
    "down": ((D, F), whole()),
}


@pytest.mark.parametrize("world", [8, 32])
def test_llama_8b_in_lists_of_one_layer_is_balanced(world):
    degrees = Degrees(world, world, world)
    lists = [
        one_list({f"{layer}.{n}": what for n, what in LLAMA_8B.items()}, degrees, world, str(layer))
        for layer in range(32)
    ]
    plan = plan_updates(Muon(), lists, world)
    assert plan.balance() <= 1.1
    moved, least = plan.moved()
    assert moved <= 1.15 * least
