"""The part of an optimizer's state that torch keeps as numbers, under the keys of torch.

A plain program asks ``torch.distributed.checkpoint`` for ``optimizer.state.<name>.step`` and for
``optimizer.param_groups.<i>.<hyperparameter>``, as ``get_optimizer_state_dict`` names them. They
repeat what the manifest says, and nothing of ours reads them.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

_TORCH: Mapping[str, Callable[..., torch.optim.Optimizer]] = MappingProxyType(
    {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "muon": torch.optim.Muon}
)
_MODULE = "torch.optim."


def torch_numbers(scalars: Mapping[str, Any]) -> dict[str, Any]:
    """``{"state": {name: {"step": 0-d float32}}, "param_groups": [...]}``.

    Args:
        scalars: of `Checkpointable.checkpoint_scalars`; what is not there is left out.
    """
    numbers: dict[str, Any] = {}
    if steps := scalars.get("step"):
        numbers["state"] = {
            name: {"step": torch.tensor(float(step), dtype=torch.float32)}
            for name, step in steps.items()
        }
    if groups := scalars.get("param_groups"):
        numbers["param_groups"] = [torch_group(group) for group in groups]
    return numbers


def torch_group(group: Mapping[str, Any]) -> dict[str, Any]:
    """A param group with exactly the keys that torch's optimizer of that rule has.

    Rules that torch has not keep the keys that they have.
    """
    rule = group.get("rule", "")
    make = getattr(torch.optim, rule.removeprefix(_MODULE)) if _MODULE in rule else _TORCH.get(rule)
    if make is None:
        return dict(group)
    defaults = make([torch.empty(1, 1)]).param_groups[0]
    values = {key: group.get(key, value) for key, value in defaults.items() if key != "params"}
    for key, value in values.items():
        if isinstance(defaults[key], tuple):  # JSON has lists, and tables may be given by name
            values[key] = defaults[key] if isinstance(value, str) else tuple(value)
    if values.get("ns_steps", 0) is None:
        values["ns_steps"] = defaults["ns_steps"]
    return {**values, "params": list(group["params"])}
