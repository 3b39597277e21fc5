"""`fully_shard`: has the plan made and agreed upon, and turns a model into a sharded one."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from torch import nn

from sshsdp_fsdp_runtime.plan import (
    Cast,
    ModelSpec,
    Options,
    Pack,
    Plan,
    Sharding,
    Update,
    build_plan,
)
from sshsdp_fsdp_runtime.plan.rules import shown
from sshsdp_fsdp_runtime.runtime.agreement import agree_on_plan
from sshsdp_fsdp_runtime.runtime.deferred_init import Construction, initial_values_of
from sshsdp_fsdp_runtime.runtime.environment import transport_from_environment
from sshsdp_fsdp_runtime.runtime.hooks import install
from sshsdp_fsdp_runtime.runtime.model_check import check_model
from sshsdp_fsdp_runtime.runtime.packed import check_members
from sshsdp_fsdp_runtime.runtime.parameter import ShardedParameter
from sshsdp_fsdp_runtime.runtime.sharded_module import ShardedModule
from sshsdp_fsdp_runtime.runtime.state import RuntimeState
from sshsdp_zerosm import Transport

Model = TypeVar("Model", bound=nn.Module)

_ordinals = itertools.count()


def fully_shard(
    model: Model,
    *,
    sharding: Sequence[Sharding] | None = None,
    groups: Sequence[str] | None = None,
    packs: Sequence[Pack] = (),
    formats: Sequence[Cast] = (),
    updates: Sequence[Update] | None = None,
    ignored: Sequence[str] = (),
    transport: Transport | None = None,
    form: Literal["auto", "shared", "private"] = "auto",
    average: Literal["mean", "sum"] = "mean",
    slots: int = 2,
    padding_budget: float = 0.03,
    poison: bool = False,
    skip_nonfinite: bool = True,
    sync: Literal["rank0", "assert"] = "rank0",
) -> Model:
    """Shard a model in place. Collective.

    The model keeps its code and its object; its class gets the methods of `ShardedModule`, and
    ``model.optimizer`` updates it. The training loop stays plain PyTorch.

    Args:
        model: on the CPU, initialized; or built in `deferred_init`, or on the meta device.
        sharding: degrees by parameter pattern; default: weights and sums of gradients over the
            ranks of a node, the update over all ranks.
        groups: patterns of modules whose weights are gathered and whose gradients are reduced as
            one; default: the elements of every outermost ``nn.ModuleList``.
        packs: linear layers that are computed as one, by pattern of the module around them;
            default: none.
        formats: dtype of computation by parameter pattern; default: as the model was built.
        updates: update rule by parameter pattern; default: ``AdamW()`` for everything.
        ignored: patterns of parameters that stay as they are: plain, whole on every rank, with
            gradients, updates and a place in checkpoints that are the caller's affair.
        transport: connects the ranks; default: from the environment that torchrun sets, else a
            world of one rank.
        form: ``shared`` or ``private`` gathered weights, or ``auto``; see `Options`.
        average: ``mean`` or ``sum`` of gradients over ranks.
        slots: buffers that groups take turns with.
        padding_budget: padding for the sake of update units, see `Options`.
        poison: fill released bytes with NaN, to find reads of them (private form only).
        skip_nonfinite: steps whose gradient norm is not finite change nothing.
        sync: ``rank0``: all ranks take rank 0's initial values. ``assert``: they must be equal.

    Returns:
        `model` itself.

    Raises:
        TypeError: an argument of another type, or a model that can't be sharded; the text says
            which and what to give.
        ValueError: a setting has another value.
        PlanError: rules and model don't fit.
        RuntimeError: ranks planned differently; the same error on every rank.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"expected a model, an object of nn.Module, got {shown(model)}; build one first"
        )
    if isinstance(model, ShardedModule):
        raise TypeError("expected a plain model, got one that is sharded already")
    initial = initial_values_of(model)
    check_model(model, initial, ignored)
    if sync not in ("rank0", "assert"):
        raise ValueError(f"expected sync 'rank0' or 'assert', got {sync!r}")
    options = Options(
        form=form,
        average=average,
        slots=slots,
        padding_budget=padding_budget,
        poison=poison,
        skip_nonfinite=skip_nonfinite,
    )
    if transport is not None and not isinstance(transport, Transport):
        raise TypeError(
            f"expected a transport, got {transport!r}; give connect(rank, world, store) of "
            "sshsdp_zerosm, or nothing under torchrun"
        )
    owned = transport is None
    transport = transport or transport_from_environment()

    def build() -> Plan:
        plan = build_plan(
            replace(ModelSpec.of(model), initial=initial),
            transport.topology,
            sharding=sharding,
            groups=groups,
            packs=packs,
            formats=formats,
            updates=updates,
            ignored=ignored,
            options=options,
        )
        check_members(model, plan.packs)
        return plan

    plan = agree_on_plan(transport, build)
    construction = None if initial == "given" else Construction(model)
    prefix = f"model{next(_ordinals)}."
    state = RuntimeState(model, plan, transport, prefix, sync, construction)
    for handle in state.handles:
        handle.parameter.__class__ = ShardedParameter
        handle.parameter._handle = handle  # type: ignore[attr-defined]
    cls = type(model)
    # The name is kept: libraries write it into configurations, to find the class again.
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    model.__class__ = type(cls.__name__, (ShardedModule, cls), names)
    assert isinstance(model, ShardedModule)
    model._sharded = state
    model._owns_transport = owned
    model._sharded_hooks = list(install(model, state))
    transport.tell_forks(model)
    return model
