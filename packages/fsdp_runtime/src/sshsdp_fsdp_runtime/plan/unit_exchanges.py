"""What update units move between ranks, as schedules: one per exchange of a step."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from sshsdp_fsdp_runtime.plan.plan import Plan
from sshsdp_fsdp_runtime.plan.storage import TEMPORARIES
from sshsdp_updates import Message, PlannedExchange, Traffic, UpdatePlan, planned_exchanges
from sshsdp_zerosm import Schedule, message_schedule


def unit_exchanges(plan: Plan) -> Iterator[tuple[str, Schedule]]:
    """What each exchange is for, and its phases "start" and "wait", in the order of a step.

    Schedules are those that the optimizer compiles, in channels of other names.
    """
    node_of = plan.topology.node_of
    for made in plan.update_plans:
        traffic = cache(_traffic_of(made))
        for planned in planned_exchanges(made):
            title = f"{made.rule.name}, wave {planned.wave}: {planned.way} of {planned.stage.name}"
            yield (
                title,
                message_schedule(
                    title,
                    plan.world,
                    TEMPORARIES,
                    _messages_of(traffic, planned),
                    lambda rank, peer: node_of(rank) == node_of(peer),
                ),
            )


def _traffic_of(made: UpdatePlan) -> Callable[[int], Traffic]:
    return lambda rank: Traffic(made, rank)


def _messages_of(
    traffic: Callable[[int], Traffic], planned: PlannedExchange
) -> Callable[[int], Sequence[Message]]:
    return lambda rank: traffic(rank).messages(planned)
