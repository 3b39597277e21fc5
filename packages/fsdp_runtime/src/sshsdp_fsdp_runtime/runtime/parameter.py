"""The parameter class of sharded models: sees every use of a weight, shows sharded gradients."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sshsdp_fsdp_runtime.runtime import outside
from sshsdp_fsdp_runtime.runtime.direct import DIRECT
from sshsdp_fsdp_runtime.runtime.engine import watch_backward

if TYPE_CHECKING:
    from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle

# What is done with a parameter without its values.
_METADATA = frozenset(
    {
        torch.Tensor.dim,
        torch.Tensor.element_size,
        torch.Tensor.is_complex,
        torch.Tensor.is_contiguous,
        torch.Tensor.is_floating_point,
        torch.Tensor.nelement,
        torch.Tensor.numel,
        torch.Tensor.register_hook,
        torch.Tensor.register_post_accumulate_grad_hook,
        torch.Tensor.requires_grad_,
        torch.Tensor.size,
        torch.Tensor.storage_offset,
        torch.Tensor.stride,
        torch.autograd.grad,
        torch.is_complex,
        torch.is_floating_point,
        torch.numel,
    }
)


class ShardedParameter(nn.Parameter):
    """A parameter whose weight and gradient live in the buffers of a plan.

    A model's own parameter objects get this class when the model is sharded, so their identity,
    and with it every tie, is kept.
    """

    _handle: "ParameterHandle"

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Deliver weights that are about to be read, and gradients straight into g'."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            # In compiled code the hooks of modules have fetched the weights.
            if torch.compiler.is_compiling() or function in _METADATA:
                return function(*args, **kwargs)
            _refuse(outside.writes(function, args, kwargs))
            if function.__name__ in ("__get__", "__set__"):
                return _property(function, args)
            handles = _readable((*args, *kwargs.values()))
            args = tuple(_together(argument) for argument in args)
            direct = DIRECT.get(function)
            if direct is not None:
                written = direct(*args, **kwargs)
                if written is not None:
                    return written
            result = function(*args, **kwargs)
            for handle in handles:
                if handle.weights.releases:
                    result = outside.kept(result, handle.parameter, handle.weights)
            if handles:
                watch_backward(result, handles)
            return result

    @property
    def grad(self) -> Any:
        """The sharded gradient of this round, or None when the round has none.

        Reading it never communicates; its norm and ``mul_`` finalize gradients on all ranks.
        """
        handle = self._handle
        return None if handle.passes is None else handle.passes.show_gradient(handle)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        handle = self._handle
        if value is not None:
            raise RuntimeError(
                f"expected None, which drops the gradient of {handle.spec.name!r}, got a tensor; "
                "gradients of sharded parameters come from loss.backward() only"
            )
        if handle.passes is not None:
            handle.passes.drop_gradient(handle)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise RuntimeError(
            "expected a sharded model to stay in place, got deepcopy of "
            f"{self._handle.spec.name!r}; copy weights with model.full_state_dict(), or build the "
            "copy before fully_shard()"
        )


def _refuse(written: Sequence[Any]) -> None:
    for argument in written:
        if type(argument) is ShardedParameter:
            raise RuntimeError(
                f"expected {argument._handle.spec.name!r} to be read only, got an operation that "
                f"writes into it; {outside.CHANGE}"
            )


def _property(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """An attribute. Not ``data`` itself, which hides changes from the counter of them."""
    if not outside.reads_data(function):
        return function(*args)
    (parameter,) = args
    return parameter._handle.weights.shown(parameter._handle).detach()


def _readable(arguments: tuple[Any, ...]) -> "list[ParameterHandle]":
    """Make the weights among `arguments` readable; those that a backward has to do with."""
    handles = []
    for argument in arguments:
        if type(argument) is ShardedParameter:
            handle = argument._handle
            if not handle.weights.ready:
                handle.weights.unshard()
            if handle.weights.releases or argument.requires_grad:
                handles.append(handle)
    return handles


def _together(argument: Any) -> Any:
    """Weights in a list, some of which may have to take turns with others in a buffer."""
    if type(argument) not in (list, tuple):
        return argument
    if not any(type(item) is ShardedParameter for item in argument):
        return argument
    items = []
    for item in argument:
        if type(item) is ShardedParameter:
            group = item._handle.weights
            group.unshard()
            item = item.clone() if group.releases and not group.active else item
        items.append(item)
    return type(argument)(items)


def take_autograd_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """Take what autograd accumulated, which `ShardedParameter.grad` hides, and clear it."""
    slot: Any = torch.Tensor.grad
    gradient: torch.Tensor | None = slot.__get__(parameter)
    if gradient is not None:
        slot.__set__(parameter, None)
    return gradient
