"""Update rules for models that torch or FSDP2 owns: an ordinary optimizer over its parameters."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from sshsdp_shardchain import Fragment, Holders, Level
from sshsdp_updates.exchange import AnyExchange
from sshsdp_updates.holders import RowHolders, WholeHolders
from sshsdp_updates.optimizer import ShardedOptimizer
from sshsdp_updates.planner import LIMIT
from sshsdp_updates.process_group import ProcessGroupExchange
from sshsdp_updates.rule import UpdateRule
from sshsdp_updates.unit import TensorUnit, whole
from sshsdp_updates.update_list import UpdateList, UpdateMember

Choice = UpdateRule | tuple[UpdateRule, TensorUnit]
"""What updates a tensor, and the unit it works on if that is not the whole tensor."""


def optimizer_for(
    parameters: Iterable[tuple[str, Tensor]],
    choose: Callable[[str, tuple[int, ...]], Choice],
    *,
    skip_nonfinite: bool = True,
    limit: int = LIMIT,
) -> ShardedOptimizer:
    """Build an optimizer over parameters as they are, plain or sharded by FSDP2.

    Weights are updated where they are; gradients are copied before each step into buffers of their
    own, so that clipping by torch and accumulation stay what they were. ``DTensor`` parameters may
    have one ``Shard(0)`` and be replicated over other dimensions of their mesh; nothing is gathered
    but what a stage over units misses. Whether a parameter has a gradient must be the same on all
    ranks, as it is under FSDP2.

    Args:
        parameters: ``model.named_parameters()``; those that don't require gradients are left out.
        choose: the rule, or (rule, unit), for a name and a logical shape. Return the same rule
            object for parameters that share a param group.
        skip_nonfinite: as of `ShardedOptimizer`.
        limit: as of `ShardedOptimizer`.

    Raises:
        TypeError: parameters without names, or no rule chosen.
        ValueError: a placement, a dtype or a unit that cannot be.
    """
    if not callable(choose):
        raise TypeError(
            f"expected a function of a name and a shape, got {choose!r}; give one, such as "
            "lambda name, shape: rule"
        )
    lists: list[UpdateList] = []
    steps = ParameterSteps()
    groups: dict[int, dist.ProcessGroup] = {}
    for name, parameter in _named(parameters):
        if parameter.requires_grad:
            rule, unit = _chosen(name, choose(name, tuple(parameter.shape)))
            lists.append(_list(name, parameter, rule, unit, groups))
            steps.add(name, parameter, lists[-1].main_grad)
    exchange: AnyExchange | None = None
    if len(groups) > 1:
        raise ValueError(
            f"expected all parameters sharded over one group of ranks, got {len(groups)} groups; "
            "build one optimizer per group"
        )
    for group in groups.values():
        exchange = ProcessGroupExchange(group, device=lists[0].main_weight.device)
    return ShardedOptimizer(
        lists,
        reducer=exchange,
        steps=steps,
        skip_nonfinite=skip_nonfinite,
        exchange=exchange,
        limit=limit,
    )


def _named(parameters: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The pairs as they come; a model, a dict and ``parameters()`` give none."""
    for item in parameters if isinstance(parameters, Iterable) else (parameters,):
        if not isinstance(item, tuple) or len(item) != 2:
            raise TypeError(
                f"expected names with their parameters, got {type(item).__name__}; give "
                "model.named_parameters()"
            )
        yield item


def _chosen(name: str, choice: Choice) -> tuple[UpdateRule, TensorUnit]:
    where = f"choose({name!r}, shape)"
    rule, unit = choice if isinstance(choice, tuple) and len(choice) == 2 else (choice, whole())
    return UpdateRule.expect(rule, where), TensorUnit.expect(unit, where)


def _list(
    name: str,
    parameter: Tensor,
    rule: UpdateRule,
    unit: TensorUnit,
    groups: dict[int, dist.ProcessGroup],
) -> UpdateList:
    """Look at one parameter as a list of one member."""
    shape = tuple(parameter.shape)
    numel = math.prod(shape)
    local, holders, rank = _local(parameter), _holders(name, parameter, groups), 0
    start = 0
    if isinstance(holders, RowHolders):
        rank = dist.get_rank(next(iter(groups.values())))
        mine = [holding for holding in holders.of(name) if holding.rank == rank]
        start, numel = (mine[0].start, mine[0].stop - mine[0].start) if mine else (0, 0)
    if local.numel() != numel or not local.is_contiguous():
        raise ValueError(
            f"parameter {name!r}: expected {numel} contiguous elements on rank {rank}, got "
            f"{local.numel()} with strides {local.stride()}; shard evenly by rows"
        )
    fragment = Fragment(name, Level.ZERO1, rank, start, start + numel, start, 0)
    flat = local.detach().view(-1)
    return UpdateList(
        name=name,
        rule=rule,
        members=(UpdateMember(name, parameter, fragment, shape, unit),),
        main_weight=flat,
        main_grad=torch.zeros_like(flat),
        counted=rank == 0 or isinstance(holders, RowHolders),
        holders=holders,
    )


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _holders(name: str, parameter: Tensor, groups: dict[int, dist.ProcessGroup]) -> Holders:
    """Say who holds a parameter, and note the group that shares it."""
    shape = tuple(parameter.shape)
    if not isinstance(parameter, DTensor):
        return WholeHolders({name: math.prod(shape)})
    mesh = parameter.device_mesh
    sharded = [
        dim for dim, placement in enumerate(parameter.placements) if placement != Replicate()
    ]
    if len(sharded) > 1 or any(parameter.placements[dim] != Shard(0) for dim in sharded):
        raise ValueError(
            f"parameter {name!r}: expected one Shard(0) and otherwise Replicate(), got "
            f"{parameter.placements}; other placements have no rows to hand out"
        )
    if not sharded:
        return WholeHolders({name: math.prod(shape)})
    group = mesh.get_group(sharded[0])
    groups[id(group)] = group
    return RowHolders({name: shape}, mesh.size(sharded[0]))


@dataclass
class _Copied:
    """A gradient that was copied: of an object that is kept alive, at a version."""

    gradient: Tensor
    version: int


class ParameterSteps:
    """The step protocol over gradients that autograd puts into parameters."""

    def __init__(self) -> None:
        """Know no parameter yet."""
        self._parameters: dict[str, tuple[Tensor, Tensor]] = {}
        self._copied: dict[str, _Copied] = {}

    def add(self, name: str, parameter: Tensor, main_grad: Tensor) -> None:
        """Copy the gradient of `parameter` into `main_grad` before steps."""
        self._parameters[name] = (parameter, main_grad)

    def finalize_gradients(self) -> bool:
        """Copy gradients that are new or were changed; tell whether there are any."""
        changed = False
        for name, (parameter, main_grad) in self._parameters.items():
            gradient = parameter.grad
            if gradient is None:
                changed |= self._copied.pop(name, None) is not None
                continue
            local = _local(gradient)
            known = self._copied.get(name)
            if known and known.gradient is gradient and known.version == local._version:
                continue
            main_grad.copy_(local.reshape(-1))
            self._copied[name] = _Copied(gradient, local._version)
            changed = True
        return changed

    def used(self, name: str) -> bool:
        """Whether the parameter has a gradient."""
        return self._parameters[name][0].grad is not None

    def begin_update(self) -> None:
        """Do nothing: nobody else reads the weights during a step."""

    def end_update(self) -> None:
        """Do nothing: weights were updated where they are."""

    def zero_grad(self) -> None:
        """Drop gradients, as ``torch.optim`` does."""
        for parameter, _ in self._parameters.values():
            parameter.grad = None
        self._copied.clear()
