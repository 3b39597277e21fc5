"""What a plan's schedules do one after another in training is proven to work, without any rank."""

from itertools import chain

import pytest
from testing.models import TiedModel
from torch import nn

from sshsdp_fsdp_runtime import ModelSpec, Options, Sharding, Update, build_plan, is_matrix
from sshsdp_fsdp_runtime.plan import Field, ScheduleBook
from sshsdp_fsdp_runtime.plan.storage import TEMPORARIES
from sshsdp_fsdp_runtime.plan.unit_exchanges import unit_exchanges
from sshsdp_shardchain import Degrees
from sshsdp_updates import AdamW, Muon, NorMuon, heads
from sshsdp_zerosm import Idle, Publish, Region, Run, Topology, Use, verify

SPEC = ModelSpec.of(TiedModel(width=4, hidden=4, depth=2))
MIXED = [
    Sharding("layers.*.up.**", Degrees(1, 2, 4)),
    Sharding("layers.0.**", Degrees(4, 4, 4)),
    Sharding("layers.**", Degrees(2, 2, 4)),
    Sharding("gain", Degrees.for_ddp()),
    Sharding("**", Degrees.for_hsdp(2)),
]


def regions(plan, book, field, atoms):
    """A field of all atoms on all ranks."""
    return tuple(
        book.region(atom, field, rank)
        for atom in atoms
        for rank in range(plan.world)
        if plan.storage.span(atom, field, rank) is not None
    )


def update(plan, book):
    """Everyone writes its part of w; shards are completed."""
    yield from (Idle(), Use(writes=regions(plan, book, Field.OWN, plan.atoms)), Publish())
    if shards := book.gather_shards():
        yield from (Run(shards, "gather"), Publish())


def microbatch(plan, book, *, accumulate):
    """Forward, and per group of the backward a gather and a turn in the gradient slot."""
    for group in (*plan.groups, *plan.reduction_order):
        if gather := book.gather(group):
            yield Run(gather, "gather")
        yield Use(reads=regions(plan, book, Field.WEIGHTS, group.atoms))
    for group in plan.reduction_order:
        gradients = Use(writes=regions(plan, book, Field.GRADIENTS, group.atoms))
        if reduce := book.reduce(group):
            yield from (Run(reduce, "acquire"), gradients, Run(reduce, "ready"))
            yield Run(reduce, "reduce", accumulate)
        else:
            yield gradients


def finish(plan, book):
    """Sums become main gradients."""
    for atom in plan.atoms:
        for schedule in (book.reduce_sums(atom), book.sum_replicas(atom)):
            if schedule is not None:
                yield Run(schedule, "reduce")
    yield Use(reads=regions(plan, book, Field.MAIN_GRAD, plan.atoms))


@pytest.mark.parametrize(
    ("topology", "sharding", "form"),
    [
        (Topology.single(4), MIXED, "auto"),
        (Topology.single(4), MIXED, "private"),
        (Topology(2, 2), MIXED, "auto"),
        (Topology(2, 2), [Sharding("**", Degrees(1, 2, 2))], "auto"),
        (Topology(3, 2), [Sharding("**", Degrees(3, 3, 6))], "private"),
        (Topology(4, 1), MIXED, "private"),
    ],
    ids=str,
)
def test_training_neither_deadlocks_nor_races(topology, sharding, form):
    plan = build_plan(SPEC, topology, sharding=sharding, options=Options(form=form))
    book = ScheduleBook(plan)
    step = [
        *update(plan, book),
        *microbatch(plan, book, accumulate=False),
        *microbatch(plan, book, accumulate=True),
        *finish(plan, book),
    ]
    scenes = list(chain(step, step))
    shared = [arena.name for arena in plan.storage.arenas if arena.shared]
    verified = verify(scenes, topology, shared=shared)
    assert verified.moved.between == verified.least_between


@pytest.mark.parametrize("topology", [Topology.single(4), Topology(2, 2), Topology(3, 1)], ids=str)
def test_exchanges_of_update_units_neither_deadlock_nor_race(topology):
    model = nn.Sequential(nn.Linear(12, 20), nn.Linear(20, 14), nn.Linear(14, 10))
    plan = build_plan(
        ModelSpec.of(model),
        topology,
        sharding=[Sharding("**", Degrees(1, 1, topology.world))],
        updates=[
            Update("0.**", NorMuon(), where=is_matrix),
            Update("**", Muon(), where=is_matrix, unit=heads(2)),
            Update("**", AdamW()),
        ],
        options=Options(padding_budget=0.0),
    )
    [arena] = [arena for arena in plan.storage.arenas if arena.name == TEMPORARIES]
    whole = tuple(Region(TEMPORARIES, rank, 0, arena.nbytes) for rank in range(plan.world))
    scenes = []
    exchanges = list(unit_exchanges(plan))
    for _, schedule in exchanges:
        scenes += [Use(writes=whole), Run(schedule, "start"), Run(schedule, "wait")]
    scenes.append(Use(reads=whole))
    assert len(exchanges) >= 4
    verified = verify(scenes * 2, topology)
    assert verified.moved.within + verified.moved.between > 0
