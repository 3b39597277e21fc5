"""Who waits and who is waited for, step by step."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sshsdp_fsdp_runtime.checkpoint.messages import exchange_all
from sshsdp_fsdp_runtime.plan.wait_phase import WaitPhase, phase_of
from sshsdp_zerosm import Transport

_SECONDS = 1e-9  # per nanosecond


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Where the time of one rank went; all times in seconds.

    Attributes:
        rank: whose.
        steps: that were timed.
        seconds: of these steps together.
        waited: by phase.
        waited_for: by the rank that was not there yet; others of 0 are left out.
        longest_wait: in one step.
        longest_step: which one, from 1.
    """

    rank: int
    steps: int
    seconds: float
    waited: Mapping[WaitPhase, float]
    waited_for: Mapping[int, float]
    longest_wait: float
    longest_step: int

    @property
    def waited_seconds(self) -> float:
        """Over all phases."""
        return sum(self.waited.values())

    @property
    def worked(self) -> float:
        """Seconds without the waits: computing, copying, summing, reading data."""
        return self.seconds - self.waited_seconds


@dataclass(frozen=True, slots=True)
class StragglerReport:
    """The times of all ranks, the same on every rank.

    Attributes:
        ranks: in rank order.
    """

    ranks: tuple[RankTimes, ...]

    @property
    def waited_for(self) -> tuple[float, ...]:
        """Seconds that the others together waited for each rank."""
        return tuple(
            sum(times.waited_for.get(rank, 0.0) for times in self.ranks)
            for rank in range(len(self.ranks))
        )

    @property
    def last(self) -> int | None:
        """The rank that the others waited for most; None if nobody ever waited."""
        seconds = self.waited_for
        return seconds.index(max(seconds)) if any(seconds) else None

    def rows(self) -> list[list[str]]:
        """A heading, then a row per rank, in seconds per step; phases without waits left out."""
        phases = [p for p in WaitPhase if any(times.waited.get(p) for times in self.ranks)]
        rows = [["rank", "step", "worked", "waited", *phases, "waited for", "longest wait"]]
        for times, waited_for in zip(self.ranks, self.waited_for, strict=True):
            steps = max(times.steps, 1)
            seconds = [times.seconds, times.worked, times.waited_seconds]
            seconds += [times.waited.get(phase, 0.0) for phase in phases]
            longest = f"{times.longest_wait:.3f} (step {times.longest_step})"
            numbers = [f"{value / steps:.3f}" for value in (*seconds, waited_for)]
            rows.append([str(times.rank), *numbers, longest if times.longest_step else ""])
        return rows

    def describe(self) -> str:
        """The table as text, and who was last."""
        rows = self.rows()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        last = "nobody waited" if self.last is None else f"most waited for: rank {self.last}"
        return "\n".join(["seconds per step:", *lines, last])


class StragglerWatch:
    """Times the steps of one rank, and what it waited for others in them.

    Nothing is sent before `report`. The transport measures waits where they happen, on the host.

    Args:
        transport: of the model.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._steps = 0
        self._nanoseconds = 0
        self._longest = (0, 0)  # nanoseconds, step
        self._waits: dict[tuple[str, int], int] = {}
        self.begin()

    def begin(self) -> None:
        """A step begins now, and not where the last one ended: leave out what was between."""
        self._began = time.perf_counter_ns()
        self._total = self._transport.waits.total
        self._before = dict(self._transport.waits.nanoseconds)

    def step(self) -> float:
        """A step ends now, and the next one begins. Local.

        Returns:
            Seconds that this rank waited for others in the step.
        """
        waits = self._transport.waits
        waited = waits.total - self._total
        self._steps += 1
        self._nanoseconds += time.perf_counter_ns() - self._began
        if waited > self._longest[0]:
            self._longest = waited, self._steps
        for key, nanoseconds in waits.nanoseconds.items():
            more = nanoseconds - self._before.get(key, 0)
            self._waits[key] = self._waits.get(key, 0) + more
        self.begin()
        return waited * _SECONDS

    def report(self) -> StragglerReport:
        """The times of all ranks, of whole steps. Collective."""
        payload = json.dumps(self._times()).encode()
        messages = exchange_all(self._transport, payload)
        return StragglerReport(
            tuple(_read(rank, json.loads(message)) for rank, message in enumerate(messages))
        )

    def _times(self) -> dict[str, Any]:
        phases: dict[str, float] = {}
        sources: dict[int, float] = {}
        for (channel, source), nanoseconds in self._waits.items():
            phase, seconds = phase_of(channel), nanoseconds * _SECONDS
            phases[phase] = phases.get(phase, 0.0) + seconds
            sources[source] = sources.get(source, 0.0) + seconds
        return {
            "steps": self._steps,
            "seconds": self._nanoseconds * _SECONDS,
            "waited": phases,
            "waited_for": list(sources.items()),
            "longest_wait": self._longest[0] * _SECONDS,
            "longest_step": self._longest[1],
        }


def _read(rank: int, times: dict[str, Any]) -> RankTimes:
    waited = {WaitPhase(phase): seconds for phase, seconds in times.pop("waited").items()}
    waited_for = dict(times.pop("waited_for"))
    return RankTimes(rank=rank, waited=waited, waited_for=waited_for, **times)
