"""Broken schedules are caught, by the proof or by the values, and nothing in them is needless."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch

from sshsdp_zerosm import (
    Fence,
    Pull,
    Put,
    Reduce,
    Region,
    Run,
    ScheduleError,
    Signal,
    Topology,
    TransportError,
    Wait,
    WaitGeneration,
    verify,
)

from .stories import ALGORITHMS, Story, changed

STORIES = [
    Story(Topology(2, 2), (0, 1, 2, 3), (40, 24, 16, 60)),
    Story(Topology(3, 2), (0, 1, 2), (60, 50, 60)),
    Story(Topology(3, 2), (5, 0, 3, 4, 1), (60, 8, 60, 33, 21)),
    Story(Topology(3, 1), (0, 1, 2), (60, 50, 60)),
]
NAMES = [f"{story.topology}-{len(story.group)}" for story in STORIES]
EVERYWHERE = [
    pytest.param(story, algorithm, id=f"{name}-{algorithm}")
    for story, name in zip(STORIES, NAMES, strict=True)
    for algorithm in ALGORITHMS
]


def caught(story, algorithm, mutant):
    """How the proof finds out, or None: in one turn, or back to back with other programs."""
    schedules = {"scatter": story.scatter(), algorithm: mutant}
    try:
        verify(story.turn(algorithm, mutant), story.topology)
        verify(story.scenes(tuple(schedules), schedules), story.topology)
    except ScheduleError as error:
        return error.faults[0]
    return None


def wrong(story, algorithm, mutant):
    """Whether the values of a Loopback show it."""
    try:
        got, expected = story.play(algorithm, schedule=mutant)
    except (TransportError, ValueError):
        return True
    return not all(map(torch.equal, got, expected))


def operations(schedule, *kinds):
    """(phase, rank, place) of every operation of some kinds."""
    return [
        (phase, rank, place)
        for phase in schedule.phases
        for rank in range(schedule.world)
        for place, op in enumerate(schedule.ops(phase, rank))
        if isinstance(op, kinds)
    ]


def replaced(schedule, where, *instead):
    """The schedule with other operations at one place."""
    place = where[2]

    def change(at_phase, at_rank, ops):
        return (
            (*ops[:place], *instead, *ops[place + 1 :]) if (at_phase, at_rank) == where[:2] else ops
        )

    return changed(schedule, change)


def at(schedule, where):
    phase, rank, place = where
    return schedule.ops(phase, rank)[place]


@pytest.mark.parametrize(("story", "algorithm"), EVERYWHERE)
def test_dropping_any_operation_is_caught(story, algorithm):
    schedule = story.schedule(algorithm)
    for where in operations(schedule, Put, Pull, Reduce, Fence, Signal, Wait, WaitGeneration):
        op = at(schedule, where)
        if op != Signal("slot.ready", ()) and op != Signal("slot.done", ()):
            mutant = replaced(schedule, where)
            found = caught(story, algorithm, mutant)
            # A buffer that keeps its last contents is defined, and wrong.
            moves = isinstance(op, Put | Pull | Reduce)
            assert found or (moves and wrong(story, algorithm, mutant)), op


@pytest.mark.parametrize(("story", "algorithm"), EVERYWHERE)
def test_every_handshake_is_needed(story, algorithm):
    """Without the waits of one rank for one channel of another, and without its signals to it.

    Only that siblings have read may be known otherwise, from what one of them did afterwards; and
    in an all-reduce, that a workspace is free, from what its owner computed from it.
    """
    schedule = story.schedule(algorithm)
    edges = {
        (rank, at(schedule, (phase, rank, place)).channel, peer)
        for phase, rank, place in operations(schedule, Signal)
        for peer in at(schedule, (phase, rank, place)).to
    }
    needless = Counter()
    for owner, channel, peer in sorted(edges):

        def without(phase, rank, ops, owner=owner, channel=channel, peer=peer):
            for op in ops:
                if rank == owner and isinstance(op, Signal) and op.channel == channel:
                    yield replace(op, to=tuple(other for other in op.to if other != peer))
                elif not (rank == peer and isinstance(op, Wait) and op.channel == channel
                          and op.source == owner):  # fmt: skip
                    yield op

        if not caught(story, algorithm, changed(schedule, without)):
            needless[channel.split(".")[-1]] += 1
    known = {"done", "room"} if algorithm == "all_reduce" else {"done"}
    assert set(needless) <= known, needless


@pytest.mark.parametrize(("story", "algorithm"), EVERYWHERE)
def test_swapping_two_signals_is_caught(story, algorithm):
    schedule = story.schedule(algorithm)
    signals = [at(schedule, where) for where in operations(schedule, Signal)]
    used = {signal.channel for signal in signals if signal.to}
    for one, other in itertools.combinations(sorted(used), 2):
        names = {one: other, other: one}

        def swapped(phase, rank, ops, names=names):
            for op in ops:
                if isinstance(op, Signal):
                    yield replace(op, channel=names.get(op.channel, op.channel))
                else:
                    yield op

        assert caught(story, algorithm, changed(schedule, swapped)), names


@pytest.mark.parametrize(("story", "algorithm"), EVERYWHERE)
def test_announcing_puts_before_they_are_made_is_caught(story, algorithm):
    schedule = story.schedule(algorithm)
    for owner in story.group:

        def early(phase, rank, ops, owner=owner):
            puts = [op for op in ops if isinstance(op, Put)]
            if rank != owner or not puts:
                return ops
            last = ops.index(puts[-1])
            others = [op for op in ops[: last + 2] if op not in puts]
            return (*others, *puts, *ops[last + 2 :])

        if any(
            isinstance(op, Put) for phase in schedule.phases for op in schedule.ops(phase, owner)
        ):
            assert caught(story, algorithm, changed(schedule, early)), owner


def shifted(region, by):
    return Region(region.arena, region.rank, region.offset + by, region.nbytes)


@pytest.mark.parametrize(("story", "algorithm"), EVERYWHERE[:6])
def test_any_shifted_offset_is_caught(story, algorithm):
    schedule = story.schedule(algorithm)
    for where in operations(schedule, Put, Pull, Reduce):
        op = at(schedule, where)
        mutants = [replace(op, target=shifted(op.target, 64))]
        if isinstance(op, Reduce):
            mutants.append(replace(op, sources=(shifted(op.sources[0], 64), *op.sources[1:])))
        else:
            mutants.append(replace(op, source=shifted(op.source, 64)))
        for instead in mutants:
            mutant = replaced(schedule, where, instead)
            assert caught(story, algorithm, mutant) or wrong(story, algorithm, mutant), instead


@pytest.mark.parametrize("story", STORIES, ids=NAMES)
def test_writing_inputs_before_the_slot_is_free_is_caught(story):
    schedule = story.scatter()
    scenes = story.scenes(("scatter",), {"scatter": schedule})
    early = [
        scenes[place + 1] if at_acquire else scenes[place - 1] if after else scene
        for place, scene in enumerate(scenes)
        for at_acquire in [isinstance(scene, Run) and scene.phase == "acquire"]
        for after in [place and getattr(scenes[place - 1], "phase", "") == "acquire"]
    ]
    verify(scenes, story.topology)
    if any(len(places) > 1 for places in story.nodes):
        with pytest.raises(ScheduleError, match=r"use \d+ .*both touch input"):
            verify(early, story.topology)


def test_one_buffer_per_client_instead_of_two_is_caught():
    """A partial is put while the one before it is still being sent, and no fence waits for that."""
    story = STORIES[0]
    schedule = story.scatter()
    buffers = {
        (rank, op.source.offset)
        for phase, rank, place in operations(schedule, Put)
        for op in [at(schedule, (phase, rank, place))]
    }
    first = {rank: min(offset for owner, offset in buffers if owner == rank) for rank, _ in buffers}

    def merged(phase, rank, ops):
        for op in ops:
            if isinstance(op, Put):
                yield replace(op, source=replace(op.source, offset=first[rank]))
            elif isinstance(op, Reduce) and (rank, op.target.offset) in buffers:
                yield replace(op, target=replace(op.target, offset=first[rank]))
            else:
                yield op

    assert "both touch space" in caught(story, "scatter", changed(schedule, merged))


def test_a_second_program_on_the_slot_of_the_first_needs_its_acquire():
    story = STORIES[0]
    first, second = story.scatter("first"), story.scatter("second")
    turns = [story.turn("scatter", schedule) for schedule in (first, second, first)]
    verify([scene for turn in turns for scene in turn], story.topology)
    late = [*turns[0], *turns[1][1:], *turns[2]]
    with pytest.raises(ScheduleError, match="both touch input"):
        verify(late, story.topology)
