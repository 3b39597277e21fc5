"""What one rank sends and reads in a training step, from the schedules that it will run."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from sshsdp_fsdp_runtime.plan.alike import group_kinds
from sshsdp_fsdp_runtime.plan.plan import Plan
from sshsdp_fsdp_runtime.plan.schedules import ScheduleBook
from sshsdp_fsdp_runtime.plan.unit_exchanges import unit_exchanges
from sshsdp_zerosm import Schedule, Topology, op_traffic


@dataclass(frozen=True, slots=True)
class Use:
    """A schedule, and how often a step runs it.

    Attributes:
        purpose: what for.
        owner: the group or atom, the first of those that are alike, or the rule with its wave and
            stage; "" if it serves all.
        alike: how many groups or atoms have such a schedule.
        times: runs of each of them in a step.
        schedule: of the owner.
    """

    purpose: str
    owner: str
    alike: int
    times: int
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """What one rank's own operations move in a step, for one purpose.

    A rank that reads a peer's memory and a rank that writes into it count the transfer, the peer
    does not: the sum over ranks counts every transfer once.

    Attributes:
        purpose: what for.
        runs: of schedules, per step.
        messages_within: transfers with ranks of the same node.
        bytes_within: their bytes.
        messages_between: transfers with ranks of other nodes.
        bytes_between: their bytes.
    """

    purpose: str
    runs: int
    messages_within: int
    bytes_within: int
    messages_between: int
    bytes_between: int


def step_uses(plan: Plan, microbatches: int) -> Iterator[Use]:
    """The schedules of a step in which every group runs once per microbatch.

    Weights that are dropped after use are gathered before a group's forward and before its
    backward. Gradients that come after their group's reduction are not planned and not counted, nor
    are the few bytes with which ranks agree on what was used and on norms and sums over rows.
    """
    book = ScheduleBook(plan)
    kinds = group_kinds(plan.groups)
    for kind in kinds:
        used = partial(Use, owner=kind.first.label, alike=len(kind.groups))
        if gather := book.gather(kind.first):
            yield used("gather weights", times=2 * microbatches, schedule=gather)
        if reduce := book.reduce(kind.first):
            yield used("reduce gradients", times=microbatches, schedule=reduce)
    for kind in kinds:
        for atom in kind.first.atoms:
            used = partial(Use, owner=atom.name, alike=len(kind.groups), times=1)
            if sums := book.reduce_sums(atom):
                yield used("reduce sums over to ZeRO-1", schedule=sums)
            if replicas := book.sum_replicas(atom):
                yield used("sum over replicas", schedule=replicas)
    for owner, schedule in unit_exchanges(plan):
        yield Use("exchange units of updates", owner, 1, 1, schedule)
    if shards := book.gather_shards():
        yield Use("gather updated shards", "", 1, 1, shards)


def step_traffic(plan: Plan, rank: int, microbatches: int = 1) -> tuple[TrafficRow, ...]:
    """What `rank` moves in one step, one row per purpose."""
    rows: dict[str, TrafficRow] = {}
    for use in step_uses(plan, microbatches):
        runs = use.alike * use.times
        moved = [runs * number for number in _moved(use.schedule, rank, plan.topology)]
        before = rows.get(use.purpose, TrafficRow(use.purpose, 0, 0, 0, 0, 0))
        rows[use.purpose] = TrafficRow(
            use.purpose,
            before.runs + runs,
            before.messages_within + moved[0],
            before.bytes_within + moved[1],
            before.messages_between + moved[2],
            before.bytes_between + moved[3],
        )
    return tuple(rows.values())


def _moved(schedule: Schedule, rank: int, topology: Topology) -> tuple[int, int, int, int]:
    """Messages and bytes within the node of `rank`, then with other nodes, in one run."""
    counts = [0, 0, 0, 0]
    for phase in schedule.phases:
        for op in schedule.ops(phase, rank):
            moved = op_traffic(op, rank, topology)
            for at, nbytes in ((0, moved.within), (2, moved.between)):
                counts[at] += nbytes > 0
                counts[at + 1] += nbytes
    return counts[0], counts[1], counts[2], counts[3]
