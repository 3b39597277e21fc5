"""All-gather without a copy: the gathered buffer is the shared memory itself."""

from collections.abc import Sequence

from sshsdp_zerosm.builders.group import Group
from sshsdp_zerosm.ops import Op, WaitGeneration
from sshsdp_zerosm.schedule import Schedule


def all_gather_aliased(name: str, *, group: Sequence[int], world: int) -> Schedule:
    """Phase "gather": wait until the other members have published; no byte moves.

    For buffers in an arena made with ``shared=True``, of which each member writes its own part
    between ``idle`` and ``publish``.

    Args:
        name: of the schedule.
        group: ranks that take part.
        world: number of ranks.
    """
    members = Group(tuple(group), world)

    def gather(_: int, rank: int) -> list[Op]:
        return [WaitGeneration(peer) for peer in members.others(rank)]

    return members.schedule(name, {"gather": gather})
