"""Weights in the hands of code that is no forward: what is read stays, what is written is refused.

Full weights lie in buffers that other groups take over or that all ranks share. A view of them that
outlives the call would show other values later, and writing there changes one rank's copy or,
shared, everybody's, once per rank. So a view that is taken while the group's module does not run is
handed out as a copy, and operations in place raise before they change anything.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from sshsdp_fsdp_runtime.runtime.weights import WeightGroup

_data: Any = torch.Tensor.data
_GET_DATA, _SET_DATA = _data.__get__, _data.__set__
_OPERATORS = frozenset(
    {"__setitem__", "__iadd__", "__isub__", "__imul__", "__idiv__", "__itruediv__", "__ipow__"}
    | {"__ifloordiv__", "__imod__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"}
)

CHANGE = (
    "update weights with model.optimizer, and edit them in `with model.unsharded(...) as full:`, "
    "which writes back what is done to the full values; resize or replace parameters before "
    "fully_shard()"
)
"""What to do instead."""


def writes(function: Callable[..., Any], arguments: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Return the arguments that an operation changes in place; empty if there is none."""
    name = function.__name__
    if name.endswith("_") and (not name.endswith("__") or name in _OPERATORS):
        return _flat(arguments[:1] or tuple(given.values())[:1])
    if name == "__set__":
        return arguments[:1] if function == _SET_DATA else ()
    return _flat((given["out"],)) if "out" in given else ()


def reads_data(function: Callable[..., Any]) -> bool:
    """Tell whether a property is ``Tensor.data``."""
    same: bool = function == _GET_DATA
    return same


def kept(result: Any, parameter: torch.Tensor, group: "WeightGroup") -> Any:
    """Return `result` of reading a parameter outside of its group's forward: no view of it."""
    if group.active or torch._C._current_graph_task_id() != -1:
        return result
    if torch._C._are_functorch_transforms_active():
        return result
    return _copied(result, parameter)


def _copied(result: Any, parameter: torch.Tensor) -> Any:
    if type(result) in (tuple, list):
        return type(result)(_copied(item, parameter) for item in result)
    if isinstance(result, torch.Tensor) and _aliased(result, parameter):
        return result.clone()
    return result


def _aliased(result: torch.Tensor, parameter: torch.Tensor) -> bool:
    shared: bool = torch._C._is_alias_of(result, parameter)  # type: ignore[attr-defined]
    return shared


def _flat(arguments: Iterable[Any]) -> list[Any]:
    flat: list[Any] = []
    for argument in arguments:
        flat += argument if isinstance(argument, list | tuple) else [argument]
    return flat
