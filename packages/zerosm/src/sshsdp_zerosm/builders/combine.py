"""Schedules made of schedules: one part per group of ranks, or several parts as one."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache

from sshsdp_zerosm.ops import Op, Signal, Wait, WaitGeneration
from sshsdp_zerosm.schedule import Schedule


def by_rank(name: str, *, world: int, part: Callable[[int], Schedule]) -> Schedule:
    """Every rank takes part in its own group's schedule.

    Args:
        name: of the schedule.
        world: number of ranks.
        part: rank -> the schedule of the group that the rank is in, or one in which it has nothing
            to do. It is called when the rank's operations are asked for, so that the groups of
            other ranks are not built. All parts have the same world, phases and channels.

    Raises:
        ValueError: parts that differ in what must be the same; of ranks other than 0 it is raised
            when their operations are asked for.
    """
    first = part(0)
    last = lru_cache(maxsize=1)(part)  # all phases of a rank need the same part

    def checked(rank: int) -> Schedule:
        found = last(rank)
        for what in ("world", "phases", "channels"):
            expected, got = (_said(schedule, what) for schedule in (first, found))
            if expected != got:
                raise ValueError(
                    f"schedule {name!r}: expected {what} {expected} of rank {rank}'s part as of "
                    f"rank 0's, got {got}"
                )
        return found

    if first.world != world:
        raise ValueError(f"schedule {name!r}: expected parts of world {world}, got {first.world}")

    def expanded(phase: str) -> Callable[[int], Sequence[Op]]:
        return lambda rank: checked(rank).expand(phase, rank)

    def share(rank: int) -> int:
        least = checked(rank).least_between
        assert least is not None
        return least(rank)

    phases = {phase: expanded(phase) for phase in first.phases}
    stated = first.least_between is not None
    return Schedule(name, world, phases, first.channels, share if stated else None)


def merge(name: str, parts: Sequence[Schedule], *, once: Collection[str] = ()) -> Schedule:
    """Several schedules as one: in every phase, a rank does what the first one says, then the next.

    A generation is waited for once.

    Args:
        name: of the schedule.
        parts: at least one; of one world and with the same phases.
        once: channels on which the parts meet once for all of them, like those of a slot that they
            fill together: a wait counts where it comes first, a signal where it comes last.

    Raises:
        ValueError: no parts, or parts that differ in what must be the same.
    """
    if not parts:
        raise ValueError(f"schedule {name!r}: expected at least one part, got none")
    first = parts[0]
    for part in parts[1:]:
        for what in ("world", "phases"):
            expected, got = (_said(schedule, what) for schedule in (first, part))
            if expected != got:
                raise ValueError(
                    f"schedule {name!r}: expected parts with {what} {expected} like "
                    f"{first.name!r}, got {got} of {part.name!r}"
                )
    shares = [part.least_between for part in parts if part.least_between is not None]

    def expanded(phase: str) -> Callable[[int], Sequence[Op]]:
        return lambda rank: _one_after_another(
            (op for part in parts for op in part.expand(phase, rank)), once
        )

    def share(rank: int) -> int:
        return sum(least(rank) for least in shares)

    return Schedule(
        name,
        first.world,
        {phase: expanded(phase) for phase in first.phases},
        tuple(dict.fromkeys(channel for part in parts for channel in part.channels)),
        share if len(shares) == len(parts) else None,
    )


def _said(schedule: Schedule, what: str) -> object:
    value = getattr(schedule, what)
    return value if isinstance(value, int) else tuple(value)


def _one_after_another(ops: Iterable[Op], once: Collection[str]) -> list[Op]:
    kept: list[Op] = []
    seen: set[Op] = set()
    for op in ops:
        if isinstance(op, WaitGeneration) or (isinstance(op, Wait) and op.channel in once):
            if op in seen:
                continue
            seen.add(op)
        elif isinstance(op, Signal) and op.channel in once:
            if op in seen:
                kept.remove(op)
            seen.add(op)
        kept.append(op)
    return kept
