"""The plan of a rule: who works on which unit, when, and what moves. Integers and names only."""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from itertools import chain

import torch

from sshsdp_shardchain import Holders, Part, Strip
from sshsdp_updates.blocks import lent
from sshsdp_updates.operand import Operand
from sshsdp_updates.rule import UpdateRule
from sshsdp_updates.staged_fields import SUMS, StagedFields, travelling_bytes
from sshsdp_updates.unit import TensorUnit


@dataclass(frozen=True, slots=True)
class PlanMember:
    """A tensor as a plan sees it.

    Attributes:
        name: unique over all lists.
        shape: logical.
        unit: what stages over units work on at once.
    """

    name: str
    shape: tuple[int, ...]
    unit: TensorUnit


@dataclass(frozen=True, slots=True)
class PlanList:
    """A list as a plan sees it.

    Attributes:
        name: for messages.
        dtype: of main weights.
        members: in order.
        holders: who holds which elements of them.
    """

    name: str
    dtype: torch.dtype
    members: tuple[PlanMember, ...]
    holders: Holders


@dataclass(frozen=True, slots=True)
class PlannedUnit:
    """One unit of one tensor.

    Attributes:
        list: index of its list.
        member: index of its tensor in the list.
        index: among the tensor's units.
        strip: its elements.
        shape: that it is worked on in.
        parts: who holds it, among the first ``width`` ranks of its list.
        executor: the one of them that stages over units run on.
        contiguous: whether all units of its tensor are.
        first_row: how many rows the tensor's units before it have.
    """

    list: int
    member: int
    index: int
    strip: Strip
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    executor: int
    contiguous: bool
    first_row: int

    @property
    def cut(self) -> bool:
        """Whether more than one rank holds it."""
        return len(self.parts) > 1


@dataclass(frozen=True)
class UpdatePlan:
    """What one rule does on all ranks.

    Attributes:
        rule: the rule.
        fields: the room that its stages need.
        world: number of ranks.
        lists: in order.
        units: all that are not empty, in the order of lists and members; none where a rule only
            has stages over elements and no temporaries.
        waves: ranges of `units`; all stages run over one wave after another, so that temporaries
            are as large as a wave and not as the model.
        loads: cost of the stages over units, by rank.
        slot_nbytes: room of a wave, the largest over waves and ranks.
        scratch_nbytes: the most that a call of a stage allocates beside it, likewise; values per
            row are not counted.
    """

    rule: UpdateRule
    fields: StagedFields
    world: int
    lists: tuple[PlanList, ...]
    units: tuple[PlannedUnit, ...]
    waves: tuple[range, ...]
    loads: tuple[int, ...]
    slot_nbytes: int
    scratch_nbytes: int
    _held: dict[tuple[int, int], list[int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def nbytes(self) -> int:
        """Bytes to reserve: two waves are under way where there are two."""
        return self.slot_nbytes * min(2, len(self.waves))

    def held(self, rank: int, wave: range) -> Iterator[tuple[int, int]]:
        """Yield the units of a wave that `rank` holds a part of: (index, index of the part)."""
        if not self._held:
            for index, unit in enumerate(self.units):
                width = self.lists[unit.list].holders.width
                for part in unit.parts:
                    self._held.setdefault((width, part.rank), []).append(index)
        widths = sorted({item.holders.width for item in self.lists})
        found = [self._held.get((width, rank % width), []) for width in widths]
        here = (own[bisect_left(own, wave.start) : bisect_left(own, wave.stop)] for own in found)
        for index in sorted(chain.from_iterable(here)):
            unit = self.units[index]
            base = rank % self.lists[unit.list].holders.width
            yield index, next(i for i, part in enumerate(unit.parts) if part.rank == base)

    def moved(self) -> tuple[int, int]:
        """Return bytes that travel in a step of one set of replicas, and the least possible.

        The least is what would travel if every unit were worked on where most of it is.
        """
        moved = least = 0
        travelling = {
            dtype: travelling_bytes(self.rule, dtype) for dtype in {i.dtype for i in self.lists}
        }
        for unit in self.units:
            if unit.cut:
                numels = [part.numel for part in unit.parts]
                here = next(part.numel for part in unit.parts if part.rank == unit.executor)
                per_element = travelling[self.lists[unit.list].dtype]
                edges = self._lent(unit)
                moved += (sum(numels) - here) * per_element + edges
                least += (sum(numels) - max(numels)) * per_element + edges
        return moved, least

    def _lent(self, unit: PlannedUnit) -> int:
        """Bytes of cut blocks of a unit that travel to be summed, over all stages that reduce."""
        if not self.fields.sums:
            return 0
        loans = lent(unit.parts, unit.shape[-1])
        numel = sum(stop - lender.start for lender, _, _, stop in loans)
        return numel * SUMS.itemsize * len(self.fields.sums)

    def balance(self) -> float:
        """Return the largest load over the average one; 1 where there is nothing to do."""
        total = sum(self.loads)
        return max(self.loads) * len(self.loads) / total if total else 1.0

    def describe(self) -> str:
        """Return a text for people: stages, units, balance and bytes."""
        moved, least = self.moved()
        cut = sum(unit.cut for unit in self.units)
        members = sum(len(item.members) for item in self.lists)
        header = (
            f"rule {self.rule.name}: {members} tensors in {len(self.lists)} lists, "
            f"{len(self.units)} units, {cut} of them cut, world {self.world}"
        )
        lines = [header]
        lines += [
            f"  stage {stage.name} over {stage.kind.value}: {_operands(stage.operands)}"
            for stage in self.rule.stages()
        ]
        if self.units:
            above = f"{moved / least:.2f} of the least" if least else "nothing has to"
            room = f"{len(self.waves)} waves, {self.nbytes} bytes reserved"
            lines.append(f"  load: max over average {self.balance():.3f}")
            lines.append(f"  moved per step: {moved} bytes, {above}")
            more = f"up to {self.scratch_nbytes} more while stages run"
            lines.append(f"  temporaries: {room}, {more}")
        return "\n".join(lines)

    def signature(self) -> str:
        """Return SHA-256 (hex) of everything that ranks must agree on."""
        content = {
            "update plan": 1,  # raised when the same content starts to mean another plan
            "rule": self.rule.name,
            "stages": [_operands(stage.operands) for stage in self.rule.stages()],
            "rooms": [_rooms(rooms) for rooms in astuple(self.fields)],
            "world": self.world,
            "lists": [
                (
                    item.name,
                    str(item.dtype),
                    item.holders.width,
                    [(m.name, m.shape, m.unit.name) for m in item.members],
                )
                for item in self.lists
            ],
            "executors": [unit.executor for unit in self.units],
            "waves": [wave.stop for wave in self.waves],
            "slot": self.slot_nbytes,
        }
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _operands(operands: Sequence[Operand]) -> str:
    return ", ".join(f"{o.field} {o.access.value} per {o.unit.name}" for o in operands)


def _rooms(rooms: Sequence[tuple[str, torch.dtype | None]]) -> list[tuple[str, str]]:
    return [(name, str(dtype)) for name, dtype in rooms]
