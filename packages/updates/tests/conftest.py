"""A world of ranks in one process: one thread per rank, sums taken in rank order."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import pytest
import torch
from torch import Tensor

from sshsdp_shardchain import ChainHolders, Degrees, Layout, Level
from sshsdp_updates import (
    InProcessWorld,
    ShardedOptimizer,
    TensorUnit,
    UpdateList,
    UpdateMember,
    UpdateRule,
    whole,
)


class ThreadReducer:
    """All-reduce among threads; `calls` counts collectives, not ranks."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world, timeout=20)
        self.parts: list[Tensor | None] = [None] * world
        self.calls = 0

    def on(self, rank: int) -> "RankReducer":
        return RankReducer(self, rank)


class RankReducer:
    def __init__(self, shared: ThreadReducer, rank: int) -> None:
        self.shared = shared
        self.rank = rank

    def all_reduce(self, tensor: Tensor, op: str) -> None:
        combine = {"sum": torch.add, "max": torch.maximum}[op]
        self.shared.parts[self.rank] = tensor.clone()
        if self.shared.barrier.wait() == 0:
            self.shared.calls += 1
        tensor.copy_(reduce(combine, self.shared.parts))
        self.shared.barrier.wait()


class Steps:
    """Step protocol of a rank: says who has a gradient and records what it is asked."""

    def __init__(self) -> None:
        self.unused: set[str] = set()
        self.changed: bool | None = None
        self.calls: list[str] = []

    def finalize_gradients(self) -> bool | None:
        self.calls.append("finalize")
        return self.changed

    def used(self, name: str) -> bool:
        return name not in self.unused

    def begin_update(self) -> None:
        self.calls.append("begin")

    def end_update(self) -> None:
        self.calls.append("end")


class Cluster:
    """Optimizers of all ranks over the shards of full tensors.

    Padding, and the gradients of members without one, hold NaN: whoever reads them shows it.
    """

    def __init__(
        self,
        lists: Sequence[tuple[UpdateRule, Mapping[str, Tensor]]],
        *,
        world: int = 1,
        zero1: int | None = None,
        align: int = 1,
        degrees: Degrees | None = None,
        units: Mapping[str, TensorUnit] | None = None,
        **options: object,
    ) -> None:
        self.world = world
        degrees = degrees or Degrees(1, 1, zero1 or world)
        self.zero1 = degrees.zero1
        self.shapes = {name: tuple(t.shape) for _, tensors in lists for name, t in tensors.items()}
        self.units = units or {}
        self.layouts = [
            Layout.pack([(n, t.numel()) for n, t in tensors.items()], degrees, world, align=align)
            for _, tensors in lists
        ]
        self.dtype = next(iter(lists[0][1].values())).dtype
        self.parameters = {
            name: torch.nn.Parameter(tensor.new_empty(0))
            for _, ts in lists
            for name, tensor in ts.items()
        }
        self.reducer = ThreadReducer(world)
        self.steps = [Steps() for _ in range(world)]
        self.lists = [self._rank_lists(lists, rank) for rank in range(world)]
        for _, tensors in lists:
            for name, tensor in tensors.items():
                self.scatter("main_weight", name, tensor)
        self.exchange = InProcessWorld(world)
        exchanges = self.exchange.ranks()

        def build(rank: int) -> ShardedOptimizer:
            return ShardedOptimizer(
                self.lists[rank],
                reducer=self.reducer.on(rank),
                steps=self.steps[rank],
                exchange=exchanges[rank],
                **options,
            )

        self.optimizers = self._each(build, range(world))

    def _rank_lists(self, lists, rank: int) -> list[UpdateList]:
        result = []
        for index, ((rule, _), layout) in enumerate(zip(lists, self.layouts, strict=True)):
            numel = layout.chain.range(Level.ZERO1, rank).numel
            members = tuple(
                UpdateMember(
                    f.name,
                    self.parameters[f.name],
                    f,
                    self.shapes[f.name],
                    self.units.get(f.name, whole()),
                )
                for f in layout.fragments(Level.ZERO1, rank)
            )
            weight, grad = (torch.full((numel,), torch.nan, dtype=self.dtype) for _ in range(2))
            counted = rank < self.zero1
            holders = ChainHolders(layout)
            result.append(UpdateList(f"list{index}", rule, members, weight, grad, counted, holders))
        return result

    def _views(self, tensor_of: Callable[[int, int], Tensor], name: str):
        """Yield (rank, range in the tensor, view of the local fragment)."""
        for rank in range(self.world):
            for index, layout in enumerate(self.layouts):
                if name in {placement.name for placement in layout.placements}:
                    f = layout.fragment(name, Level.ZERO1, rank)
                    local = tensor_of(rank, index)[f.local_offset : f.local_offset + f.numel]
                    yield rank, slice(f.start, f.stop), local

    def scatter(self, field: str, name: str, full: Tensor) -> None:
        def buffer(rank: int, index: int) -> Tensor:
            return getattr(self.lists[rank][index], field)

        for _, where, local in self._views(buffer, name):
            local.copy_(full.view(-1)[where])

    def gather(self, field: str, name: str, numel: int) -> Tensor:
        """Put the fragments together; replicas must be bit-equal."""

        def buffer(rank: int, index: int) -> Tensor:
            return getattr(self.lists[rank][index], field)

        full = torch.full((numel,), torch.nan, dtype=self.dtype)
        for rank, where, local in self._views(buffer, name):
            if rank < self.zero1:
                full[where] = local
            else:
                assert torch.equal(full[where], local)
        return full

    def set_gradients(
        self, gradients: Mapping[str, Tensor | None], numels: Mapping[str, int]
    ) -> None:
        for name, gradient in gradients.items():
            unknown = torch.full((numels[name],), torch.nan, dtype=self.dtype)
            self.scatter("main_grad", name, unknown if gradient is None else gradient)
        for steps in self.steps:
            steps.unused = {name for name, gradient in gradients.items() if gradient is None}

    def weight(self, name: str, numel: int) -> Tensor:
        return self.gather("main_weight", name, numel)

    def gradient(self, name: str, numel: int) -> Tensor:
        return self.gather("main_grad", name, numel)

    def run(self, function: Callable[[ShardedOptimizer], object]) -> list[object]:
        """Call `function` with every rank's optimizer, at the same time."""
        return self._each(function, self.optimizers)

    def _each(self, function: Callable, arguments: Sequence) -> list:
        if self.world == 1:
            return [function(argument) for argument in arguments]

        def guarded(argument: object) -> object:
            try:
                return function(argument)
            except BaseException:
                self.reducer.barrier.abort()
                self.exchange.abort()
                raise

        with ThreadPoolExecutor(self.world) as pool:
            futures = [pool.submit(guarded, argument) for argument in arguments]
        errors = [future.exception() for future in futures if future.exception()]
        for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
            raise error
        return [future.result() for future in futures]

    def padding_is_untouched(self) -> bool:
        for lists in self.lists:
            for item in lists:
                outside = torch.ones(item.main_weight.numel(), dtype=torch.bool)
                for member in item.members:
                    start = member.fragment.local_offset
                    outside[start : start + member.fragment.numel] = False
                for tensor in (item.main_weight, item.main_grad):
                    if not tensor[outside].isnan().all():
                        return False
        return True


@pytest.fixture(scope="session")
def cluster() -> type[Cluster]:
    return Cluster
