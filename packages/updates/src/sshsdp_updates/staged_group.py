"""Runs a rule with stages over units or rows: wave after wave, exchange beside computation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sshsdp_updates.block_sums import BlockSums
from sshsdp_updates.exchange import AnyExchange
from sshsdp_updates.flat_state import FlatState
from sshsdp_updates.labels import labelled
from sshsdp_updates.plan import UpdatePlan
from sshsdp_updates.stage import Scalars, Stage, StageKind
from sshsdp_updates.step_counts import StepCounts, Used
from sshsdp_updates.traffic import Traffic, planned_exchanges, slot_start
from sshsdp_updates.wave_calls import Call, Copy, WaveCalls
from sshsdp_updates.wave_memory import WaveMemory

Programs = dict[tuple[str, str], Any]
"""What the exchange compiled for a wave, by (stage, way); empty where no unit is cut."""


@dataclass
class _Prepared:
    """One stage over one wave, ready to run.

    Attributes:
        local: calls that need nothing from other ranks.
        cut: calls over units that other ranks hold parts of.
        before: copies into the room of a stage over units.
        after: copies out of it.
        sums: of a reduce stage.
    """

    local: list[Call]
    cut: list[Call]
    before: list[Copy]
    after: list[Copy]
    sums: BlockSums | None = None


class StagedGroup:
    """One rule and its lists.

    Views are made when the used members or the differences between their step counts change.
    """

    def __init__(
        self,
        plan: UpdatePlan,
        flats: Sequence[FlatState],
        exchange: AnyExchange,
        buffer: Tensor,
    ) -> None:
        """Compile all exchanges; collective.

        Args:
            plan: of the rule, the same on every rank.
            flats: its lists, in the order of the plan.
            exchange: moves bytes of `buffer`.
            buffer: at least ``plan.nbytes``, reserved from `exchange`.
        """
        self.rule = plan.rule
        self.plan = plan
        self.flats = tuple(flats)
        self._exchange = exchange
        self._stages = self.rule.stages()
        self._label = f"sshsdp::{self.rule.name}"
        self._counts = StepCounts(self.flats)
        traffic = Traffic(plan, exchange.rank)
        self._programs: list[Programs] = [{} for _ in plan.waves]
        for planned in planned_exchanges(plan):
            program = exchange.compile(traffic.messages(planned))
            self._programs[planned.wave][planned.stage.name, planned.way] = program
        self._memories = [
            WaveMemory(
                plan,
                units,
                traffic.slot(exchange.rank, wave),
                buffer[slot_start(plan, wave) :][: plan.slot_nbytes],
                self.flats,
            )
            for wave, units in enumerate(plan.waves)
        ]
        self._prepared: dict[int, list[_Prepared]] = {}

    def run(self, hyperparameters: Mapping[str, Any], used: Sequence[Used]) -> None:
        """Run every stage once over the used members; counts of steps stay as they are.

        Collective where anything is exchanged.

        Args:
            hyperparameters: of the param group, as they are now.
            used: per list of this group; the same on every rank.
        """
        if self._counts.arrange(used):
            self._prepared.clear()
        lags = {lag for row in self._counts.lags for lag in row if lag is not None}
        scalars = {lag: self._counts.scalars(self.rule, hyperparameters, lag) for lag in lags}
        waves = [wave for wave in range(len(self._memories)) if self._is_used(wave)]
        running: list[tuple[int, Iterator[None]]] = []
        for wave in waves:
            # A slot is free when the wave before the last one is through.
            while any(other % 2 == wave % 2 for other, _ in running):
                _advance(running)
            running.append((wave, self._wave(wave, scalars)))
            _advance(running, len(running) - 1)
        while running:
            _advance(running)

    def commit(self) -> None:
        """Count the step that `run` has done."""
        self._counts.commit()

    def _is_used(self, wave: int) -> bool:
        lags, units = self._counts.lags, self.plan.units
        return any(
            lags[units[index].list][units[index].member] is not None
            for index in self.plan.waves[wave]
        )

    def _wave(self, wave: int, scalars: Mapping[int, Scalars]) -> Iterator[None]:
        """Run all stages over one wave; stops wherever something is under way."""
        programs = self._programs[wave]
        if wave not in self._prepared:
            self._prepared[wave] = self._prepare(wave)
        for stage, prepared in zip(self._stages, self._prepared[wave], strict=True):
            _copy(prepared.before)
            if stage.kind is StageKind.UNITS:
                yield from self._start(programs, (stage.name, "gather"))
                self._call(stage, prepared.local, scalars)
                self._wait(programs, (stage.name, "gather"))
                self._call(stage, prepared.cut, scalars)
                yield from self._start(programs, (stage.name, "give back"))
                self._wait(programs, (stage.name, "give back"))
            else:
                self._call(stage, prepared.local, scalars)
            if prepared.sums is not None:
                yield from self._start(programs, (stage.name, "lend"))
                self._wait(programs, (stage.name, "lend"))
                total = prepared.sums.partial()
                self._exchange.all_reduce(total, "sum")
                prepared.sums.finish(total)
            _copy(prepared.after)

    def _call(self, stage: Stage, calls: Sequence[Call], scalars: Mapping[int, Scalars]) -> None:
        with labelled(f"{self._label} {stage.name}"):
            for call in calls:
                _copy(call.before)
                stage.function(call.operands, scalars[call.lag])
                _copy(call.after)

    def _start(self, programs: Programs, key: tuple[str, str]) -> Iterator[None]:
        """Begin an exchange, if there is one, and let other waves go on."""
        if key in programs:
            with labelled(f"{self._label} start {key[0]} {key[1]}"):
                self._exchange.start(programs[key])
            yield

    def _wait(self, programs: Programs, key: tuple[str, str]) -> None:
        if key in programs:
            with labelled(f"{self._label} {key[0]} {key[1]}"):
                self._exchange.wait(programs[key])

    def _prepare(self, wave: int) -> list[_Prepared]:
        memory = self._memories[wave]
        calls = WaveCalls(memory, self.flats, self._counts.lags)
        prepared = []
        for stage in self._stages:
            if stage.kind is StageKind.UNITS:
                before, after = calls.staged(stage)
                local, cut = calls.units(stage, cut=False), calls.units(stage, cut=True)
                prepared.append(_Prepared(local, cut, before, after))
            elif stage.kind is StageKind.ROWS:
                prepared.append(_Prepared(calls.rows(stage), [], [], []))
            else:
                sums = None
                if stage.kind is StageKind.REDUCE:
                    sums = BlockSums(stage, memory, calls, self._exchange.rank)
                prepared.append(_Prepared(calls.elements(stage), [], [], [], sums))
        return prepared


def _copy(copies: Sequence[Copy]) -> None:
    for target, source in copies:
        target.copy_(source)


def _advance(running: list[tuple[int, Iterator[None]]], first: int = 0) -> None:
    """Let the waves from `first` on do one more piece of work; drop those that are through."""
    for entry in running[first:]:
        if next(entry[1], _THROUGH) is _THROUGH:
            running.remove(entry)


_THROUGH = object()
