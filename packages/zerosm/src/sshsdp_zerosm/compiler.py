"""From a schedule and a transport's memory to a program."""

from collections.abc import Callable, Mapping, Sequence

import torch

from sshsdp_zerosm.arena import Arena
from sshsdp_zerosm.board import Board
from sshsdp_zerosm.channels import Channels
from sshsdp_zerosm.ops import Fence, Op, Pull, Put, Reduce, Signal, Wait, WaitGeneration
from sshsdp_zerosm.program import Host, Phase, Program
from sshsdp_zerosm.reduction import Reduction, Scratch
from sshsdp_zerosm.region import Region
from sshsdp_zerosm.remote import Remote
from sshsdp_zerosm.schedule import Schedule
from sshsdp_zerosm.steps import (
    CopyStep,
    FenceStep,
    GenerationStep,
    ReduceStep,
    SignalStep,
    Step,
    WaitStep,
)
from sshsdp_zerosm.waiter import Waiter


class Compiler:
    """Resolves the addresses and channels of one rank.

    Args:
        rank: whose operations are compiled.
        arenas: by name; arenas made later are seen.
        boards: of all ranks.
        waiter: who waits.
        addressable: whether this rank reads a rank's memory directly.
        remote: makes puts to other ranks; None where all memory can be written.
    """

    def __init__(
        self,
        rank: int,
        arenas: Mapping[str, Arena],
        boards: Sequence[Board],
        waiter: Waiter,
        addressable: Callable[[int], bool],
        remote: Remote | None = None,
    ) -> None:
        self._remote = remote
        self._addressable = addressable
        self._rank = rank
        self._arenas = arenas
        self._boards = boards
        self._waiter = waiter
        self._channels = Channels(rank, boards)
        self._scratch = Scratch()

    def compile(self, schedule: Schedule, host: Host) -> Program:
        """Check `schedule` against this rank's world and memory, and make it executable.

        Raises:
            ValueError: another world, an unknown arena, a region outside its arena, a read of
                memory on another node, a channel used by two groups, or an unordered phase that
                sends to another node.
        """
        if schedule.world != len(self._boards):
            raise ValueError(
                f"schedule {schedule.name!r}: expected world {len(self._boards)} like the "
                f"transport, got {schedule.world}"
            )
        own = {phase: schedule.ops(phase, self._rank) for phase in schedule.phases}
        self._channels.admit(schedule, own)
        if self._remote is not None:
            self._remote.program()
        phases = {}
        for name, ops in own.items():
            for op in ops:
                self._check_readable(schedule, op)
            steps = [self._step(op) for op in ops]
            if name in schedule.unordered:
                self._check_sends_nothing(schedule, name, ops)
            elif self._remote is not None:
                steps.insert(0, self._remote.start(schedule.name, name))
            phases[name] = Phase(name, steps)
        return Program(schedule.name, phases, host)

    def _check_sends_nothing(self, schedule: Schedule, phase: str, ops: Sequence[Op]) -> None:
        for op in ops:
            targets = op.to if isinstance(op, Signal) else ()
            if isinstance(op, Put):
                targets = (op.target.rank,)
            if far := [peer for peer in targets if not self._addressable(peer)]:
                raise ValueError(
                    f"schedule {schedule.name!r}: expected nothing sent to another node in "
                    f"{phase!r}, which is unordered, got {op} of rank {self._rank} to {far}"
                )

    def _check_readable(self, schedule: Schedule, op: Op) -> None:
        sources: tuple[Region, ...] = ()
        if isinstance(op, Pull):
            sources = (op.source,)
        elif isinstance(op, Reduce):
            sources = op.sources
        for source in sources:
            if not self._addressable(source.rank):
                raise ValueError(
                    f"schedule {schedule.name!r}: rank {self._rank} can't read {source}, which is "
                    f"memory of another node: let rank {source.rank} put it, as the hierarchical "
                    f"builders do"
                )

    def _step(self, op: Op) -> Step:
        own = self._boards[self._rank]
        match op:
            case Pull():
                moved = self._moved([op.source])
                return CopyStep(self._bytes(op.source), self._bytes(op.target), moved, pull=True)
            case Put():
                return self._put(op)
            case Fence():
                source = self._bytes(op.source)  # it must exist
                return FenceStep() if self._remote is None else self._remote.fence(source)
            case Signal():
                return SignalStep(own, self._channels.word(op.channel), op.to, self._waiter)
            case Wait():
                cursor = self._channels.cursor(op.source, op.channel)
                return WaitStep(cursor, op.credit, self._boards[op.source], self._waiter)
            case WaitGeneration():
                return GenerationStep(own, op.source, self._boards, self._waiter)
            case Reduce():
                return self._reduce(op)

    def _put(self, op: Put) -> Step:
        source, to = self._bytes(op.source), op.target.rank
        if self._remote is not None and not self._addressable(to):
            self._check_inside(op.target)
            return self._remote.put(source, to, op.target.arena, op.target.offset)
        return CopyStep(source, self._bytes(op.target), self._moved([op.target]), pull=False)

    def _moved(self, regions: Sequence[Region]) -> tuple[int, int]:
        """Bytes of other ranks' regions, within and between nodes."""
        near = [region for region in regions if self._addressable(region.rank)]
        within = sum(region.nbytes for region in near if region.rank != self._rank)
        return within, sum(region.nbytes for region in regions) - sum(
            region.nbytes for region in near
        )

    def _reduce(self, op: Reduce) -> ReduceStep:
        with torch.inference_mode(False):
            sources = [self._bytes(source).view(op.dtype) for source in op.sources]
            target = self._bytes(op.target).view(op.stored)
            reduction = Reduction(sources, target, op.accumulator, op.scale, self._scratch)
        nbytes = sum(source.nbytes for source in op.sources)
        return ReduceStep(reduction, nbytes, self._moved(op.sources), overwrite=op.overwrite)

    def _bytes(self, region: Region) -> torch.Tensor:
        arena = self._check_inside(region)
        with torch.inference_mode(False):
            return arena.tensor(region.rank)[region.offset : region.stop]

    def _check_inside(self, region: Region) -> Arena:
        if region.arena not in self._arenas:
            raise ValueError(
                f"expected one of the arenas {', '.join(self._arenas) or '(none)'}, got {region}"
            )
        arena = self._arenas[region.arena]
        if region.stop > arena.nbytes:
            raise ValueError(
                f"expected a region inside the {arena.nbytes} bytes of arena {arena.name!r}, "
                f"got {region}"
            )
        return arena
