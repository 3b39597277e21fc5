"""Hooks that connect a module tree and autograd with the runtime."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from sshsdp_fsdp_runtime.plan.group import ROOT
from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle
from sshsdp_fsdp_runtime.runtime.inventory import Inventory
from sshsdp_fsdp_runtime.runtime.packed import Packed
from sshsdp_fsdp_runtime.runtime.parameter import take_autograd_gradient
from sshsdp_fsdp_runtime.runtime.state import RuntimeState
from sshsdp_fsdp_runtime.runtime.weights import WeightGroup

Hook = TypeVar("Hook", bound=Callable[..., None])


def install(model: nn.Module, state: RuntimeState) -> list[RemovableHandle]:
    """Install all hooks; removing what is returned takes them out again."""
    hooks = [hook for handle in state.handles for hook in _watch_gradient(handle)]
    hooks += _guard_root(model, state)
    modules = dict(model.named_modules())
    for name, packs in _packs_inside(state).items():
        hooks.append(_drop_outputs(modules[name], packs))
    for name, group in state.weights.items():
        if group.releases:
            hooks += _serve_forward(modules[name], group)
        else:
            hooks.append(modules[name].register_forward_pre_hook(_fetch(group)))
    return hooks


def _watch_gradient(handle: ParameterHandle) -> Iterator[RemovableHandle]:
    if handle.passes is None:
        return

    # The parameter holds the hook where the garbage collector can't see it.
    known = weakref.ref(handle)

    def on_accumulated(parameter: torch.Tensor) -> None:
        handle = known()
        assert handle is not None  # the parameter has it
        passes = handle.passes
        assert passes is not None
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            gradient = take_autograd_gradient(parameter)
            if gradient is not None:
                if gradient.is_sparse:
                    raise RuntimeError(
                        f"expected dense gradients, got a sparse one of {handle.spec.name!r}; use "
                        "embeddings with sparse=False"
                    )
                target, first = passes.claim(handle)
                if first:
                    target.copy_(gradient)
                else:
                    target.add_(gradient)
            passes.complete(handle)

    yield handle.parameter.register_post_accumulate_grad_hook(on_accumulated)  # type: ignore[no-untyped-call]


def _serve_forward(module: nn.Module, group: WeightGroup) -> list[RemovableHandle]:
    """Weights are there during the module's forward and from the start of its backward."""

    def before(_module: nn.Module, _args: Any) -> None:
        group.unshard()
        group.active += 1

    def after(_module: nn.Module, _args: Any, output: Any) -> None:
        group.active = max(group.active - 1, 0)
        if torch._C._current_graph_task_id() == -1:
            group.reshard()
        for tensor in _differentiable(output):
            tensor.register_hook(expect_backward)  # type: ignore[no-untyped-call]

    def expect_backward(_gradient: torch.Tensor) -> None:
        group.unshard()
        group.awaited = True

    return [
        module.register_forward_pre_hook(_eager(before)),
        module.register_forward_hook(_eager(after), always_call=True),
    ]


def _fetch(group: WeightGroup) -> Callable[..., None]:
    """Fetches weights that stay; compiled modules, whose operations don't, are in need of it."""
    unshard = _eager(group.unshard)

    def before(_module: nn.Module, _args: Any) -> None:
        if not group.ready:
            unshard()

    return before


def _packs_inside(state: RuntimeState) -> dict[str, list[Packed]]:
    """Packs by the modules after whose forward nobody will call their members again."""
    inside: dict[str, list[Packed]] = {}
    for pack in state.packs:
        group = state.by_name[pack.plan.weights[0]].weights.plan.module
        for module in dict.fromkeys((pack.plan.module, group, ROOT)):
            inside.setdefault(module, []).append(pack)
    return inside


def _drop_outputs(module: nn.Module, packs: Sequence[Packed]) -> RemovableHandle:
    def after(_module: nn.Module, _args: Any, _output: Any) -> None:
        for pack in packs:
            pack.drop()

    return module.register_forward_hook(_eager(after), always_call=True)


def _guard_root(model: nn.Module, state: RuntimeState) -> list[RemovableHandle]:
    """Checks before the model's forward; the begin of a backward pass through its output."""
    inventory = Inventory(model, state.handles, state.plan.spec.ignored)
    staying = [group for group in state.weights.values() if not group.releases]

    def before(module: nn.Module, _args: Any) -> None:
        state.passes.recover()
        state.update.check("a forward")
        inventory.check(module)
        for group in staying:  # here, so that a graph of the whole model is not cut at each group
            group.unshard()

    def after(_module: nn.Module, _args: Any, output: Any) -> None:
        for tensor in _differentiable(output):
            tensor.register_hook(begin_pass)  # type: ignore[no-untyped-call]

    def begin_pass(_gradient: torch.Tensor) -> None:
        state.check_open()
        state.passes.arm()

    return [
        model.register_forward_pre_hook(_eager(before)),
        model.register_forward_hook(_eager(after)),
    ]


def _eager(hook: Hook) -> Hook:
    """The hook is called, not traced, where a module is compiled around it."""
    disabled: Hook = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return disabled


def _differentiable(output: Any) -> list[torch.Tensor]:
    if not torch.is_grad_enabled():
        return []
    leaves = tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
