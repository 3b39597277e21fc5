"""Makes the plan of a rule: units, owners, waves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby

import torch

from sshsdp_shardchain import Owners, Part, Strip, Task, parts
from sshsdp_updates.declarations import check_declarations, is_staged
from sshsdp_updates.plan import PlanList, PlanMember, PlannedUnit, UpdatePlan
from sshsdp_updates.rule import UpdateRule, require
from sshsdp_updates.slot import part_nbytes
from sshsdp_updates.staged_fields import StagedFields, grid_of
from sshsdp_updates.unit import row_count

LIMIT = 256 * 2**20
"""Bytes that the temporaries of one wave may take on a rank, unless a single unit needs more."""


def plan_updates(
    rule: UpdateRule, lists: Sequence[PlanList], world: int, *, limit: int = LIMIT
) -> UpdatePlan:
    """Plan what `rule` does to `lists`: without tensors, ranks or communication.

    Args:
        rule: the rule.
        lists: all that it updates.
        world: number of ranks.
        limit: bytes of temporaries of one wave on a rank; a unit is never split.

    Returns:
        The same plan on every rank.

    Raises:
        ValueError: a declaration or a unit that cannot be; it names tensor, stage and operand.
        TemporaryError: a temporary is read before it was produced.
    """
    check_declarations(rule)
    require(limit > 0, "a limit of 1 or more bytes", "limit", limit)
    fields = StagedFields.of(rule)
    units: list[PlannedUnit] = []
    owners = Owners(world)
    if is_staged(rule):
        for index, item in enumerate(lists):
            units += _units(rule, index, item, owners)
    plan = UpdatePlan(rule, fields, world, tuple(lists), tuple(units), (), owners.loads, 0, 0)
    return _with_waves(plan, limit)


class _Drafts:
    """The units of one list before anyone is chosen to work on them."""

    def __init__(self, rule: UpdateRule, item: PlanList) -> None:
        self._rule = rule
        self._item = item
        self._cost = lru_cache(maxsize=None)(rule.unit_cost)
        self.drafts: list[tuple[int, int, Strip, tuple[int, ...], tuple[Part, ...], bool, int]] = []
        self.tasks: list[Task] = []
        for number in range(len(item.members)):
            self._cut(number)

    def _cut(self, number: int) -> None:
        member = self._item.members[number]
        grid = grid_of(self._rule, member.name, member.shape, member.unit)
        _check_shapes(self._rule, member, set(grid.shapes))
        holdings, rows = self._item.holders.of(member.name), 0
        flat = grid.units.contiguous
        for unit, (strip, shape) in enumerate(zip(grid.units.strips, grid.shapes, strict=True)):
            if strip.numel:
                cut = parts(strip, holdings)
                self.drafts.append((number, unit, strip, shape, cut, flat, rows))
                self.tasks.append(Task(f"{member.name}[{unit:06}]", self._cost(shape), cut))
            rows += row_count(shape)


def _units(rule: UpdateRule, index: int, item: PlanList, owners: Owners) -> list[PlannedUnit]:
    """List the units of one list and choose who works on each."""
    drafts = _Drafts(rule, item)
    executors = owners.assign(drafts.tasks, item.holders.width)
    return [
        PlannedUnit(index, number, unit, strip, shape, cut, executor, flat, rows)
        for (number, unit, strip, shape, cut, flat, rows), executor in zip(
            drafts.drafts, executors, strict=True
        )
    ]


def _check_shapes(rule: UpdateRule, member: PlanMember, shapes: set[tuple[int, ...]]) -> None:
    for shape in sorted(shapes):
        try:
            rule.check_unit(shape)
        except ValueError as error:
            raise ValueError(
                f"rule {rule.name!r}, tensor {member.name!r} of shape {member.shape} in units of "
                f"{member.unit.name}: {error}"
            ) from None


_Nbytes = dict[tuple[int, int], int]
"""Bytes by (width of a list's set of replicas, rank in it)."""


class _Wave:
    """What the units of a wave need: the largest over ranks, kept up to date."""

    def __init__(self) -> None:
        self._nbytes: _Nbytes = {}
        self._worst: dict[int, int] = {}

    @property
    def worst(self) -> int:
        """An upper bound over ranks: each has one place in every width."""
        return sum(self._worst.values())

    def with_(self, more: _Nbytes) -> int:
        """Return what `worst` would be with `more`."""
        worst = dict(self._worst)
        for (width, rank), number in more.items():
            total = self._nbytes.get((width, rank), 0) + number
            worst[width] = max(worst.get(width, 0), total)
        return sum(worst.values())

    def take(self, more: _Nbytes) -> None:
        """Add `more`."""
        for (width, rank), number in more.items():
            total = self._nbytes.get((width, rank), 0) + number
            self._nbytes[width, rank] = total
            self._worst[width] = max(self._worst.get(width, 0), total)


_Batch = tuple[torch.dtype, bool, tuple[int, ...]]
"""What units have in common that one call works on: dtype, whether they are cut, shape."""


class _Scratch:
    """What the calls of a wave allocate: units batch by batch, elements all at once."""

    def __init__(self) -> None:
        self._batches: dict[_Batch, _Wave] = {}
        self._elements = _Wave()
        self.worst = 0

    def with_(self, batches: Mapping[_Batch, _Nbytes], elements: _Nbytes) -> int:
        """Return what `worst` would be with these."""
        none = _Wave()
        more = [self._batches.get(batch, none).with_(own) for batch, own in batches.items()]
        return max(self.worst, self._elements.with_(elements), *more)

    def take(self, batches: Mapping[_Batch, _Nbytes], elements: _Nbytes) -> None:
        """Add these."""
        self.worst = self.with_(batches, elements)
        self._elements.take(elements)
        for batch, own in batches.items():
            self._batches.setdefault(batch, _Wave()).take(own)


def _with_waves(plan: UpdatePlan, limit: int) -> UpdatePlan:
    """Close a wave where the next units would exceed the limit on some rank.

    Units that are not contiguous stay with the others of their tensor: stages over elements work
    on the whole fragment then.
    """
    waves: list[range] = []
    first = last = slot = scratch = 0
    rooms = _Rooms(plan)
    slots, beside = _Wave(), _Scratch()
    for group in _inseparable(plan.units):
        room, batches, elements = rooms.of(group)
        if last > first and slots.with_(room) + beside.with_(batches, elements) > limit:
            waves.append(range(first, last))
            first, slots, beside = last, _Wave(), _Scratch()
        slots.take(room)
        beside.take(batches, elements)
        last += len(group)
        slot, scratch = max(slot, slots.worst), max(scratch, beside.worst)
    if last > first:
        waves.append(range(first, last))
    return replace(plan, waves=tuple(waves), slot_nbytes=slot, scratch_nbytes=scratch)


def _inseparable(units: Sequence[PlannedUnit]) -> Iterator[list[PlannedUnit]]:
    """Yield contiguous units one by one, others tensor by tensor."""
    pairs = enumerate(units)
    for _, group in groupby(pairs, key=lambda pair: _tensor_or_unit(*pair)):
        yield [unit for _, unit in group]


def _tensor_or_unit(index: int, unit: PlannedUnit) -> tuple[int, int, int]:
    return unit.list, unit.member, index if unit.contiguous else -1


class _Rooms:
    """The bytes that units need, by shape and dtype, computed once each."""

    def __init__(self, plan: UpdatePlan) -> None:
        self._plan = plan
        self._scratch = lru_cache(maxsize=None)(plan.rule.unit_scratch)
        # Parts of no sums need as much as all others of their size, and there are few sizes.
        self._known: dict[tuple[object, ...], int] = {}

    def of(self, units: Sequence[PlannedUnit]) -> tuple[_Nbytes, Mapping[_Batch, _Nbytes], _Nbytes]:
        """Return bytes by holder: in slots; beside them, of stages over units, over elements."""
        slots: _Nbytes = {}
        batches: dict[_Batch, _Nbytes] = {}
        elements: _Nbytes = {}
        for unit in units:
            item = self._plan.lists[unit.list]
            width, dtype = item.holders.width, item.dtype
            each = self._plan.rule.element_scratch(dtype)
            for part in unit.parts:
                key = (width, part.rank)
                slots[key] = slots.get(key, 0) + self._part(unit, part, dtype)
                elements[key] = elements.get(key, 0) + each * part.numel
            key, batch = (width, unit.executor), (dtype, unit.cut, unit.shape)
            own = batches.setdefault(batch, {})
            own[key] = own.get(key, 0) + self._scratch(unit.shape, dtype)
        return slots, batches, elements

    def _part(self, unit: PlannedUnit, part: Part, dtype: torch.dtype) -> int:
        fields = self._plan.fields
        if fields.sums:
            return part_nbytes(fields, unit, part, dtype)
        whole = unit.strip.numel if part.rank == unit.executor else 0
        key = (dtype, unit.contiguous, whole, part.stop - part.start)
        nbytes = self._known.get(key)
        if nbytes is None:
            nbytes = self._known[key] = part_nbytes(fields, unit, part, dtype)
        return nbytes
