"""What the runtime asks of autograd's engine, and does before nodes of a backward run."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import Node

if TYPE_CHECKING:
    from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle


def wants_gradient(handle: "ParameterHandle", node: Node | None = None) -> bool:
    """Whether the running backward pass accumulates into this parameter.

    ``ctx.needs_input_grad`` is true even under ``backward(inputs=...)`` and ``autograd.grad`` of
    other tensors; only the engine knows (torch keeps the question private).

    Args:
        handle: the parameter.
        node: its `accumulate_node`, where that is at hand.
    """
    try:
        wanted: bool = torch._C._will_engine_execute_node(node or handle.accumulate_node)
    except RuntimeError as error:
        raise RuntimeError(
            f"expected gradients of sharded parameters from loss.backward(), got "
            f"torch.autograd.grad for {handle.spec.name!r}; call backward() and read p.grad"
        ) from error
    return wanted


def returns_gradients(handles: "Iterable[ParameterHandle]") -> bool:
    """Whether gradients are returned to autograd instead of being written.

    So it is where a graph of the backward is wanted, and where users' hooks (``register_hook``)
    want to see or change what a parameter gets.
    """
    return torch.is_grad_enabled() or any(handle.parameter._backward_hooks for handle in handles)


def watch_backward(result: Any, handles: "Sequence[ParameterHandle]") -> None:
    """Before the backward of an operation that was given weights.

    Autograd may have saved them: they are readable when the operation's node runs. And their
    gradients are asked for in a way that can be served.
    """
    for tensor in result if isinstance(result, tuple | list) else (result,):
        if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
            _watch_node(tensor.grad_fn, handles)


def _watch_node(node: Node, handles: "Sequence[ParameterHandle]") -> None:
    leaves = {id(getattr(leaf, "variable", None)): leaf for leaf, _ in node.next_functions}
    asked = [
        (handle, leaves.get(id(handle.parameter)))
        for handle in handles
        if handle.passes is not None and handle.parameter.requires_grad
    ]

    def after(gradients: Any, _: Any) -> None:
        watch_backward(gradients, handles)

    def before(_gradients: Any) -> None:
        if torch.is_grad_enabled():  # the backward is recorded, and its nodes save weights, too
            torch._C._current_autograd_node().register_hook(after)
        for handle in handles:
            handle.weights.unshard()
        if not torch._C._are_functorch_transforms_active():  # whose gradients are others
            for handle, leaf in asked:
                wants_gradient(handle, leaf)

    node.register_prehook(before)
