"""Every wait of a plan's schedules is told to belong to a part of the step."""

import pytest
from testing.models import TiedModel

from sshsdp_fsdp_runtime import ModelSpec, Options, Sharding, build_plan
from sshsdp_fsdp_runtime.plan import ScheduleBook, Votes
from sshsdp_fsdp_runtime.plan.wait_phase import WaitPhase, phase_of
from sshsdp_shardchain import Degrees
from sshsdp_zerosm import Topology, Wait, WaitGeneration

SPEC = ModelSpec.of(TiedModel(width=4, hidden=4, depth=2))


def phases(schedules, world):
    """Phases of all waits of all ranks."""
    found = set()
    for schedule in schedules:
        for phase in schedule.phases if schedule else ():
            for rank in range(world):
                for op in schedule.ops(phase, rank):
                    if isinstance(op, Wait):
                        found.add(phase_of(op.channel))
                    elif isinstance(op, WaitGeneration):
                        found.add(phase_of("generation"))
    return found


@pytest.mark.parametrize("topology", [Topology.single(4), Topology(2, 2), Topology(4, 1)], ids=str)
@pytest.mark.parametrize("form", ["auto", "private"])
def test_waits_have_the_phase_of_their_schedule(topology, form):
    sharding = [Sharding("layers.**", Degrees(2, 2, 4)), Sharding("**", Degrees(2, 2, 2))]
    plan = build_plan(SPEC, topology, sharding=sharding, options=Options(form=form))
    book, world = ScheduleBook(plan, "model12."), plan.world
    assert phases(map(book.gather, plan.groups), world) == {WaitPhase.WEIGHTS}
    assert phases(map(book.reduce, plan.reduction_order), world) == {WaitPhase.GRADIENTS}
    # Within a node, shards are there as soon as they are published.
    completed = WaitPhase.WEIGHTS if topology.nodes == 1 else WaitPhase.UPDATE
    assert phases([book.gather_shards()], world) == {completed}
    finishing = [f(atom) for f in (book.reduce_sums, book.sum_replicas) for atom in plan.atoms]
    assert phases(finishing, world) == {WaitPhase.FINALIZE}
    votes = Votes.of(plan.spec, plan.groups, topology).schedule("model12.votes")
    assert phases([votes], world) == {WaitPhase.AGREEMENT}


def test_waits_of_the_transport_itself():
    assert phase_of("barrier") is WaitPhase.QUIET
    assert phase_of("exchange") is WaitPhase.OTHER
    assert phase_of("model0.temporaries.17.started") is WaitPhase.UPDATE
    assert phase_of("slot of somebody else's") is WaitPhase.GRADIENTS  # no model before it either
    assert phase_of("gather my things") is WaitPhase.OTHER
