"""Tries a rule in several worlds: the number of ranks must not change a bit."""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import BrokenBarrierError
from typing import Any, ClassVar

import torch
from torch import Tensor

from sshsdp_shardchain import ChainHolders, Degrees, Layout, Level
from sshsdp_updates.in_process import InProcessExchange, InProcessWorld
from sshsdp_updates.operand import Access
from sshsdp_updates.optimizer import ShardedOptimizer
from sshsdp_updates.rule import StateField, UpdateRule
from sshsdp_updates.stage import Stage
from sshsdp_updates.staged_fields import grid_of
from sshsdp_updates.unit import TensorUnit, columns, heads, whole
from sshsdp_updates.update_list import UpdateList, UpdateMember

Tensors = Mapping[str, tuple[tuple[int, ...], TensorUnit]]

MATRICES: Tensors = {
    "tensor": ((12, 10), whole()),
    "heads": ((16, 9), heads(4)),
    "columns": ((6, 16), columns(8)),
    "small": ((1, 3), whole()),
}
"""Tensors that worlds of a few ranks cut in all ways."""


class RuleError(AssertionError):
    """A rule gives other results on several ranks than on one."""


def check_rule(
    rule: UpdateRule,
    *,
    tensors: Tensors = MATRICES,
    worlds: Sequence[int] = (2, 3, 5),
    steps: int = 2,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Run `rule` on one rank and on several, all in this process, and compare every bit.

    Args:
        rule: any rule.
        tensors: shape and unit by name.
        worlds: numbers of ranks to compare with one.
        steps: so many, with other gradients each.
        dtype: of main weights.

    Raises:
        RuleError: naming the first tensor, unit and stage that differ.
        ValueError, TemporaryError, UndeclaredOperandError, OperandAccessError: as when an
            optimizer is built.
    """
    alone = _train(rule, tensors, 1, steps, dtype)
    for world in worlds:
        if _difference(alone, _train(rule, tensors, world, steps, dtype)):
            raise RuleError(_explained(rule, tensors, world, steps, dtype))


_Key = tuple[str, str]
"""(field, tensor)."""


def _difference(first: Mapping[_Key, Tensor], second: Mapping[_Key, Tensor]) -> _Key | None:
    for key, tensor in first.items():
        if not torch.equal(tensor.view(torch.uint8), second[key].view(torch.uint8)):
            return key
    return None


def _explained(
    rule: UpdateRule, tensors: Tensors, world: int, steps: int, dtype: torch.dtype
) -> str:
    """Find the first stage with a difference, by running ever more of them."""
    for count, stage in enumerate(rule.stages(), start=1):
        part = _Part(rule, count)
        alone = _train(part, tensors, 1, steps, dtype)
        shared = _train(part, tensors, world, steps, dtype)
        key = _difference(alone, shared)
        if key is not None:
            field, name = key
            where = _where(rule, name, tensors[name], alone[key], shared[key])
            return (
                f"rule {rule.name!r}: expected the same bits on {world} ranks as on one, got "
                f"another {field!r} of tensor {name!r} in {where} after stage {stage.name!r}; a "
                "stage over elements must not look at other elements, one over units not at other "
                "units"
            )
    return (
        f"rule {rule.name!r}: expected the same bits on {world} ranks as on one, got others after "
        f"{steps} steps, though every stage alone gives the same; does it keep values of its own?"
    )


def _where(
    rule: UpdateRule,
    name: str,
    tensor: tuple[tuple[int, ...], TensorUnit],
    first: Tensor,
    second: Tensor,
) -> str:
    shape, unit = tensor
    index = int((first != second).nonzero()[0])
    if first.numel() != math.prod(shape):
        return f"row {index}"
    strips = grid_of(rule, name, shape, unit).units.strips
    number = next(
        number
        for number, strip in enumerate(strips)
        if strip.position(index + 1) > strip.position(index)
    )
    return f"unit {number} of {unit.name}, element {index} of the tensor"


@dataclass(frozen=True)
class _Part(UpdateRule):
    """The first stages of a rule; their temporaries are kept, so that they can be compared."""

    name: ClassVar[str] = "part"
    rule: UpdateRule
    count: int

    def hyperparameters(self) -> dict[str, Any]:
        return self.rule.hyperparameters()

    def stages(self) -> tuple[Stage, ...]:
        return self.rule.stages()[: self.count]

    def state_fields(self) -> tuple[StateField, ...]:
        written = {
            operand.field
            for stage in self.stages()
            for operand in stage.operands
            if operand.access is not Access.READ
        }
        kept = [
            StateField(item.name, item.dtype, item.unit)
            for item in self.rule.temporaries()
            if item.name in written
        ]
        return (*self.rule.state_fields(), *kept)

    def validate(self, hyperparameters: Mapping[str, Any]) -> None:
        self.rule.validate(hyperparameters)

    def check_unit(self, shape: tuple[int, ...]) -> None:
        self.rule.check_unit(shape)


def _train(
    rule: UpdateRule, tensors: Tensors, world: int, steps: int, dtype: torch.dtype
) -> dict[_Key, Tensor]:
    """Train on `world` ranks; return whole weights and states."""
    layout = Layout.pack(
        [(name, math.prod(shape)) for name, (shape, _) in tensors.items()],
        Degrees(world, world, world),
        world,
    )
    shared = InProcessWorld(world)

    def on_rank(exchange: InProcessExchange) -> tuple[UpdateList, ShardedOptimizer]:
        try:
            item = _list(rule, tensors, layout, exchange.rank, dtype)
            optimizer = ShardedOptimizer([item], exchange=exchange, skip_nonfinite=False)
            for step in range(1, steps + 1):
                _fill(item.main_grad, item, layout, step)
                optimizer.step()
        except BaseException:
            shared.abort()
            raise
        return item, optimizer

    with ThreadPoolExecutor(world) as pool:
        ranks = [pool.submit(on_rank, exchange) for exchange in shared.ranks()]
    errors = [error for rank in ranks if (error := rank.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error  # that of the rank which failed, not of those that it woke
    return _whole([rank.result() for rank in ranks], tensors)


def _list(
    rule: UpdateRule, tensors: Tensors, layout: Layout, rank: int, dtype: torch.dtype
) -> UpdateList:
    members = tuple(
        UpdateMember(
            fragment.name,
            torch.nn.Parameter(torch.empty(0)),
            fragment,
            tensors[fragment.name][0],
            tensors[fragment.name][1],
        )
        for fragment in layout.fragments(Level.ZERO1, rank)
    )
    numel = layout.chain.range(Level.ZERO1, rank).numel
    weight, grad = torch.zeros(numel, dtype=dtype), torch.zeros(numel, dtype=dtype)
    item = UpdateList("list", rule, members, weight, grad, holders=ChainHolders(layout))
    _fill(weight, item, layout, 0)
    return item


def _fill(target: Tensor, item: UpdateList, layout: Layout, seed: int) -> None:
    """Put this rank's part of the same random numbers into `target`, whatever the world."""
    for index, member in enumerate(item.members):
        fragment = member.fragment
        generator = torch.Generator().manual_seed(1000 * seed + index)
        numel = layout.placement(member.name).numel
        values = torch.randn(numel, dtype=target.dtype, generator=generator)
        start = fragment.local_offset
        target[start : start + fragment.numel] = values[fragment.start : fragment.stop]


def _whole(
    ranks: Sequence[tuple[UpdateList, ShardedOptimizer]], tensors: Tensors
) -> dict[_Key, Tensor]:
    found: dict[_Key, Tensor] = {}
    for item, optimizer in ranks:
        pieces = [(f.field, f.fragment, math.prod(f.shape), f.tensor) for f in optimizer.fields()]
        for member in item.members:
            start = member.fragment.local_offset
            local = item.main_weight[start : start + member.fragment.numel]
            size = math.prod(tensors[member.name][0])
            pieces.append(("main_weight", member.fragment, size, local))
        for field, fragment, size, tensor in pieces:
            key = (field, fragment.name)
            if key not in found:
                found[key] = torch.zeros(size, dtype=tensor.dtype)
            found[key][fragment.start : fragment.stop] = tensor
    return found
