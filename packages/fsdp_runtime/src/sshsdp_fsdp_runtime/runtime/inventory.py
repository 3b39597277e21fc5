"""What a model held when it was sharded, and whether it still does."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NoReturn, TypeAlias

from torch import nn

from sshsdp_fsdp_runtime.plan import ParameterSpec
from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle
from sshsdp_fsdp_runtime.runtime.parameter import ShardedParameter

Place: TypeAlias = tuple[dict[str, nn.Parameter | None], str, ParameterHandle]


class Inventory:
    """Modules and parameters of a sharded model, compared before each of its forwards.

    Modules may be wrapped, and modules without parameters and buffers may come and go. The check
    that finds nothing changed runs in C, since it is made in every forward.

    Args:
        model: just sharded.
        handles: its sharded parameters.
        ignored: parameters that were left to the user, who may replace them.
    """

    def __init__(
        self,
        model: nn.Module,
        handles: Sequence[ParameterHandle],
        ignored: Sequence[ParameterSpec],
    ) -> None:
        self._handles = tuple(handles)
        by_parameter = {id(handle.parameter): handle for handle in handles}
        self._places: list[Place] = [
            (module._parameters, key, by_parameter[id(parameter)])
            for module in model.modules()
            for key, parameter in module._parameters.items()
            if id(parameter) in by_parameter
        ]
        self._ignored = {alias for parameter in ignored for alias in parameter.aliases}
        self._remember(model)

    def check(self, model: nn.Module) -> None:
        """Compare.

        Raises:
            RuntimeError: a parameter was replaced, removed, added or unfrozen; names it.
        """
        if list(map(id, self._contents())) != self._ids:
            self._check_sharded(model)
            self._check_added(model)
            self._remember(model)
        for handle in self._handles:
            if type(handle.parameter) is not ShardedParameter:
                _raise_changed(handle)
            if handle.passes is None and handle.parameter.requires_grad:
                _raise_unfrozen(handle)

    def _remember(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self._known = {id(parameter): parameter for parameter in model.parameters()}
        self._tables: list[dict[str, Any]] = [module._modules for module in modules]
        self._tables += [module._parameters for module in modules]
        self._held = list(self._contents())  # alive, so that no id is used again
        self._ids = list(map(id, self._held))

    def _contents(self) -> "chain[Any]":
        return chain.from_iterable(map(dict.values, self._tables))

    def _check_sharded(self, model: nn.Module) -> None:
        """Every sharded parameter is where it was, in a module that is still inside."""
        inside = {id(module._parameters) for module in model.modules()}
        for parameters, key, handle in self._places:
            if id(parameters) not in inside or parameters.get(key) is not handle.parameter:
                _raise_changed(handle)

    def _check_added(self, model: nn.Module) -> None:
        names = [
            name
            for name, parameter in model.named_parameters()
            if id(parameter) not in self._known and name not in self._ignored
        ]
        if names:
            listed = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
            raise RuntimeError(
                "expected the parameters that were there when the model was sharded, got "
                f"{len(names)} in addition: {listed}; nobody would average their gradients, update "
                "or save them: add layers and parameters before fully_shard(), or close(), build "
                "the model anew with them and shard that; those that shall stay plain are named in "
                "fully_shard(..., ignored=[...])"
            )


def _raise_changed(handle: ParameterHandle) -> NoReturn:
    raise RuntimeError(
        f"expected the parameter {handle.spec.name!r} that was sharded, got another object or "
        "class; move, cast or replace parameters before fully_shard(), and edit values in "
        "model.unsharded(...)"
    )


def _raise_unfrozen(handle: ParameterHandle) -> NoReturn:
    raise RuntimeError(
        f"expected {handle.spec.name!r} to stay frozen, got requires_grad=True: the plan "
        "gives it no gradient and no state; to train it from here on, save_checkpoint(), "
        "close(), build the model again with it unfrozen, fully_shard() that and "
        "load_checkpoint(..., fresh=[its name]); or, where memory is no concern, unfreeze "
        "before fully_shard(), and freeze it after that for as long as it stands still"
    )
