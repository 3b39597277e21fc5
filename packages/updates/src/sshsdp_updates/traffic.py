"""What a rank sends and receives for one stage over one wave."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sshsdp_shardchain import Part
from sshsdp_updates.blocks import lent
from sshsdp_updates.exchange import Message
from sshsdp_updates.operand import Access
from sshsdp_updates.plan import PlannedUnit, UpdatePlan
from sshsdp_updates.slot import Slot, lay_out
from sshsdp_updates.stage import Stage, StageKind
from sshsdp_updates.staged_fields import SUMS


@dataclass(frozen=True, slots=True)
class PlannedExchange:
    """An exchange of a step, in which every rank takes part.

    Attributes:
        wave: in which.
        stage: for which stage.
        way: "gather", before a stage over units; "give back", after it; "lend", of one that
            reduces.
    """

    wave: int
    stage: Stage
    way: str


def planned_exchanges(plan: UpdatePlan) -> Iterator[PlannedExchange]:
    """Yield all exchanges of a step, in the order in which every rank compiles them."""
    for wave in range(len(plan.waves)):
        if not is_exchanged(plan, wave):
            continue
        for stage in plan.rule.stages():
            if stage.kind is StageKind.UNITS:
                yield PlannedExchange(wave, stage, "gather")
                yield PlannedExchange(wave, stage, "give back")
            elif stage.kind is StageKind.REDUCE:
                yield PlannedExchange(wave, stage, "lend")


class Traffic:
    """Messages of one rank. Slots of the ranks that it meets are laid out on demand."""

    def __init__(self, plan: UpdatePlan, rank: int) -> None:
        """Look at `plan` from `rank`."""
        self.plan = plan
        self.rank = rank
        self.slot = lru_cache(maxsize=None)(self._slot)

    def messages(self, exchange: PlannedExchange) -> list[Message]:
        """Return what this rank sends or receives in one exchange."""
        ways = {"gather": self.gather, "give back": self.give_back, "lend": self.lend}
        return ways[exchange.way](exchange.stage, exchange.wave)

    def gather(self, stage: Stage, wave: int) -> list[Message]:
        """Return what executors get before `stage` runs: parts of what it reads."""
        fields = [o.field for o in stage.operands if o.access is not Access.WRITE]
        return self._sorted(
            message for field in fields for message in self._units(field, wave, back=False)
        )

    def give_back(self, stage: Stage, wave: int) -> list[Message]:
        """Return what holders get after `stage` ran: parts of what it wrote."""
        fields = [o.field for o in stage.operands if o.access is not Access.READ]
        return self._sorted(
            message for field in fields for message in self._units(field, wave, back=True)
        )

    def lend(self, stage: Stage, wave: int) -> list[Message]:
        """Return the parts of blocks that go to whoever sums the block."""
        return self._sorted(self._blocks(stage.name, wave))

    def _sorted(self, messages: Iterator[Message]) -> list[Message]:
        """Put in an order that sender and receiver share."""
        return sorted(messages)

    def _units(self, field: str, wave: int, *, back: bool) -> Iterator[Message]:
        room = next(room for room in self.plan.fields.units if room.name == field)
        for index, unit, parts in self._cut(wave):
            executor = self._real(unit, unit.executor)
            if self.rank == executor:
                others = [part for part in parts if part.rank != executor]
            else:
                others = [part for part in parts if part.rank == self.rank]
            itemsize = room.itemsize(self.plan.lists[unit.list].dtype)
            for part in others:
                ends = (part.rank, executor) if not back else (executor, part.rank)
                yield self._message(("unit", field, index), wave, ends, part, itemsize)

    def _blocks(self, stage: str, wave: int) -> Iterator[Message]:
        for index, unit, parts in self._cut(wave):
            for lender, borrower, _, stop in lent(parts, unit.shape[-1]):
                if self.rank in (lender.rank, borrower.rank):
                    source = self._address(lender.rank, wave, ("sum", stage, index))
                    target = self._address(borrower.rank, wave, ("edge", stage, index))
                    start = lender.start * SUMS.itemsize
                    nbytes = (stop - lender.start) * SUMS.itemsize
                    yield Message(
                        lender.rank, source + start, borrower.rank, target + start, nbytes
                    )

    def _message(
        self,
        key: tuple[str, str, int],
        wave: int,
        ends: tuple[int, int],
        part: Part,
        itemsize: int,
    ) -> Message:
        source, target = ends
        start = part.start * itemsize
        return Message(
            source,
            self._address(source, wave, key) + start,
            target,
            self._address(target, wave, key) + start,
            part.numel * itemsize,
        )

    def _cut(self, wave: int) -> Iterator[tuple[int, PlannedUnit, Sequence[Part]]]:
        """Yield the cut units that this rank holds a part of, with parts of its own replicas."""
        for item in self.slot(self.rank, wave).held:
            if item.unit.cut:
                parts = [
                    Part(self._real(item.unit, part.rank), part.start, part.stop)
                    for part in item.unit.parts
                ]
                yield item.index, item.unit, parts

    def _real(self, unit: PlannedUnit, rank: int) -> int:
        """Return the rank of this rank's set of replicas that stands for `rank` of the first."""
        width = self.plan.lists[unit.list].holders.width
        return self.rank // width * width + rank

    def _address(self, rank: int, wave: int, key: tuple[str, str, int]) -> int:
        return slot_start(self.plan, wave) + self.slot(rank, wave).offsets[key]

    def _slot(self, rank: int, wave: int) -> Slot:
        return lay_out(self.plan, rank, wave)


def slot_start(plan: UpdatePlan, wave: int) -> int:
    """Return where the slot of a wave begins in the reserved buffer: waves take turns."""
    return wave % 2 * plan.slot_nbytes


def is_exchanged(plan: UpdatePlan, wave: int) -> bool:
    """Tell whether any rank exchanges anything in a wave; all take part then."""
    return any(plan.units[index].cut for index in plan.waves[wave])
