"""Sums over rows that no cut changes: block by block, in float64, in order."""

from collections.abc import Iterator

import torch
from torch import Tensor

from sshsdp_updates.blocks import BLOCK, Block, block_at, blocks_per_row
from sshsdp_updates.slot import HeldUnit
from sshsdp_updates.stage import Stage
from sshsdp_updates.staged_fields import SUMS
from sshsdp_updates.unit import ROW, row_count
from sshsdp_updates.wave_calls import WaveCalls
from sshsdp_updates.wave_memory import WaveMemory

Summand = tuple[Tensor, Tensor]
"""(target of shape (k,), source of shape (k, n))."""


class BlockSums:
    """The sums of one reduce stage over one wave.

    Every block is summed where its first element is, into one vector over all blocks of the wave
    that holds zeros elsewhere; adding those vectors up over ranks changes no bit.
    """

    def __init__(self, stage: Stage, memory: WaveMemory, calls: WaveCalls, rank: int) -> None:
        """Prepare views.

        Args:
            stage: the stage; its contributions lie in `memory`.
            memory: of the wave.
            calls: says which units are used.
            rank: this one; sets of replicas after the first leave the sums to the first.
        """
        self._stage = stage
        self._memory = memory
        self._starts, total = _starts(memory)
        self._blocks = torch.zeros(total, dtype=SUMS, device=memory.device)
        self._borrowed: list[tuple[Tensor, Tensor]] = []
        self._summands: list[Summand] = []
        for item in memory.slot.held:
            width = memory.plan.lists[item.unit.list].holders.width
            if rank < width and calls.is_used(item.index):
                self._add(item)
        target = next(operand.field for operand in stage.operands if operand.unit == ROW)
        self._results = [
            (memory.rows(target, [index]).view(-1), self._of_unit(index))
            for index in memory.wave
            if calls.is_used(index)
        ]

    def partial(self) -> Tensor:
        """Return this rank's vector, on the CPU, to be summed over ranks."""
        self._blocks.zero_()
        for target, source in self._borrowed:
            target.copy_(source)
        for target, source in self._summands:
            target.copy_(source.sum(-1))
        return self._blocks.cpu()

    def finish(self, total: Tensor) -> None:
        """Write the rows' sums from the vector that was summed over ranks."""
        self._blocks.copy_(total)
        for target, source in self._results:
            target.copy_(source.cumsum(-1)[:, -1])  # in order, and of equal rows equally

    def _of_unit(self, index: int) -> Tensor:
        shape = self._memory.plan.units[index].shape
        per_row = blocks_per_row(shape[-1])
        start, rows = self._starts[index], row_count(shape)
        return self._blocks[start : start + rows * per_row].view(rows, per_row)

    def _add(self, item: HeldUnit) -> None:
        """Sum the blocks that begin in what this rank holds of a unit."""
        length = item.unit.shape[-1]
        span, part = self._memory.part("sum", self._stage.name, item), item.part
        stop = item.edge.start if item.edge else part.stop
        for first, count, numel in _regular(_first_block(part.start, length), stop, length):
            source = span.box(first.start - part.start, count, numel, numel)
            self._summands.append((self._target(item, first, count), source))
        if item.edge:
            edge = self._memory.edge(self._stage.name, item)
            own = part.stop - item.edge.start
            here = span.view()[part.numel - own :]
            self._borrowed.append((edge.view()[:own], here))
            self._summands.append((self._target(item, item.edge, 1), edge.view().unsqueeze(0)))

    def _target(self, item: HeldUnit, first: Block, count: int) -> Tensor:
        start = self._starts[item.index] + first.index
        return self._blocks[start : start + count]


def _starts(memory: WaveMemory) -> tuple[dict[int, int], int]:
    starts, end = {}, 0
    for index in memory.wave:
        shape = memory.plan.units[index].shape
        starts[index] = end
        end += row_count(shape) * blocks_per_row(shape[-1])
    return starts, end


def _first_block(position: int, length: int) -> int:
    """Return where the first block begins that does not begin before a position."""
    block = block_at(position, length)
    return position if block.start == position else block.stop


def _regular(start: int, stop: int, length: int) -> Iterator[tuple[Block, int, int]]:
    """Yield (first block, how many, elements of each) that cover complete blocks in order.

    Rows of one block each are one batch; longer rows are a batch of full blocks and a rest.
    """
    while start < stop:
        block = block_at(start, length)
        numel = block.stop - block.start
        if length <= BLOCK:
            count = (stop - start) // length
        else:
            row_end = (start // length + 1) * length
            count = max(1, (min(row_end, stop) - start) // BLOCK) if numel == BLOCK else 1
        yield block, count, numel
        start += count * numel
