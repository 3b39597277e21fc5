"""A schedule compiled for one rank."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from sshsdp_zerosm.counters import Counters
from sshsdp_zerosm.steps import Step, WaitStep


class Host(Protocol):
    """The transport that a program belongs to."""

    counters: Counters

    def check_usable(self) -> None:
        """TransportError if it is closed or has failed."""


class Phase:
    """The steps of one phase, and what one run of them counts for."""

    def __init__(self, name: str, steps: Sequence[Step]) -> None:
        self.name = name
        self.steps = tuple(steps)
        self.runs = tuple(step.run for step in self.steps)
        self._tally = Counters(gathers=int(name == "gather"))
        waits: dict[int, int] = {}
        self._ahead = []
        for step in self.steps:
            step.tally(self._tally)
            key = id(step.cursor) if isinstance(step, WaitStep) else id(step)
            self._ahead.append(waits.get(key, 0))
            waits[key] = self._ahead[-1] + 1

    def ready(self) -> bool:
        """Whether no step would block now."""
        return all(
            step.missing(ahead) is None for step, ahead in zip(self.steps, self._ahead, strict=True)
        )

    def count(self, counters: Counters) -> None:
        """Add one run."""
        tally = self._tally
        counters.pulled_bytes += tally.pulled_bytes
        counters.put_bytes += tally.put_bytes
        counters.reduced_bytes += tally.reduced_bytes
        counters.within_bytes += tally.within_bytes
        counters.between_bytes += tally.between_bytes
        counters.gathers += tally.gathers
        counters.waits += tally.waits
        counters.signals += tally.signals


class Program:
    """What ``Transport.compile`` gives: a schedule with one rank's addresses filled in.

    Attributes:
        name: of the schedule.
    """

    def __init__(self, name: str, phases: Mapping[str, Phase], host: Host) -> None:
        self.name = name
        self._phases = dict(phases)
        self._host = host

    def run(self, phase: str, *, accumulate: bool = False) -> None:
        """Execute a phase; returns when its last operation is done.

        Args:
            phase: one of the schedule's phases.
            accumulate: Reduce adds to its target instead of overwriting it.

        Raises:
            TransportError: a wait failed, or the transport has failed before or is closed.
            ValueError: no such phase.
        """
        self._host.check_usable()
        found = self._phases.get(phase) or self.phase(phase)
        for run in found.runs:
            run(accumulate)
        found.count(self._host.counters)

    def ready(self, phase: str) -> bool:
        """Whether ``run(phase)`` would not block on any wait if it were called now."""
        self._host.check_usable()
        return self.phase(phase).ready()

    def phase(self, name: str) -> Phase:
        """A phase by name; ValueError names the ones there are."""
        if name not in self._phases:
            raise ValueError(
                f"program {self.name!r}: expected one of the phases "
                f"{', '.join(self._phases)}, got {name!r}"
            )
        return self._phases[name]

    def release(self) -> None:
        """Drop all views of arenas."""
        self._phases.clear()
