"""Who works on which unit: balanced by cost, among those who hold a part of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from .exchange import Part


@dataclass(frozen=True, slots=True)
class Task:
    """A unit to be worked on by one of its holders.

    Args:
        name: orders tasks of equal cost and size; unique.
        cost: of the work, in any unit, the same for all tasks.
        parts: of the unit, one per holder.
    """

    name: str
    cost: int
    parts: tuple[Part, ...]

    @property
    def numel(self) -> int:
        """Elements of the unit."""
        return sum(part.numel for part in self.parts)


class Owners:
    """Assigns units to ranks and remembers how much each rank has to do.

    Longest processing time first (Graham 1969): units by falling cost, then falling size, then
    name; each goes to the holder with the least load so far, of equals to the one that holds most,
    then to the lowest rank. Units of a single holder come first: they leave no choice, and the
    others can then be balanced around them. Loads stay from list to list, so that later lists
    even out what earlier ones could not. Only integers decide: every rank finds the same.
    """

    def __init__(self, world: int) -> None:
        """Start without any load on `world` ranks."""
        if world < 1:
            raise ValueError(f"expected a world of at least 1 rank, got {world}; pass its size")
        self._loads = [0] * world

    @property
    def loads(self) -> tuple[int, ...]:
        """Cost assigned so far, by rank."""
        return tuple(self._loads)

    def assign(self, tasks: Sequence[Task], width: int) -> tuple[int, ...]:
        """Choose an executor for each task.

        Args:
            tasks: of one list; each has at least one part.
            width: ranks of one set of replicas: ``r + k * width`` does in its set what ``r`` does.

        Returns:
            Ranks below `width`, in the order of the tasks.

        Raises:
            ValueError: `width` does not divide the world, or nobody holds a task.
        """
        if width < 1 or len(self._loads) % width:
            raise ValueError(
                f"expected sets of replicas that divide the world of {len(self._loads)} ranks, "
                f"got width={width}; pass the degree zero1"
            )
        executors = [0] * len(tasks)
        for index in sorted(range(len(tasks)), key=lambda index: _order(tasks[index])):
            task = tasks[index]
            if not task.parts:
                raise ValueError(f"expected a holder of {task.name!r}, got none; leave it out")
            executor = task.parts[0].rank
            if len(task.parts) > 1:
                executor = min(
                    task.parts,
                    key=lambda part: (self._load(part.rank, width), -part.numel, part.rank),
                ).rank
            executors[index] = executor
            for rank in range(executor, len(self._loads), width):
                self._loads[rank] += task.cost
        return tuple(executors)

    def _load(self, rank: int, width: int) -> int:
        loads = self._loads
        return loads[rank] if len(loads) == width else max(loads[rank::width])


def _order(task: Task) -> tuple[bool, int, int, str]:
    return len(task.parts) > 1, -task.cost, -task.numel, task.name
