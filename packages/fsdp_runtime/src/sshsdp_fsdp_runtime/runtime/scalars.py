"""What an optimizer keeps beside tensors, as JSON values and back."""

from typing import Any

import torch

from sshsdp_updates import ShardedOptimizer


def scalars_of(optimizer: ShardedOptimizer) -> dict[str, Any]:
    """Steps by parameter and hyperparameters by group; equal on all ranks."""
    content = optimizer.state_dict()
    return {
        "step": {name: float(fields["step"]) for name, fields in content["state"].items()},
        "param_groups": [
            {key: _as_json(value) for key, value in group.items()}
            for group in content["param_groups"]
        ],
    }


def load_scalars(optimizer: ShardedOptimizer, scalars: dict[str, Any]) -> None:
    """Take back what `scalars_of` gave.

    Raises:
        ValueError: of another optimizer.
    """
    content = optimizer.state_dict()
    for name, step in scalars["step"].items():
        content["state"][name]["step"] = torch.tensor(step, dtype=torch.float32)
    for ours, saved in zip(content["param_groups"], scalars["param_groups"], strict=True):
        for key, value in saved.items():
            ours[key] = _from_json(key, value, ours.get(key))
    optimizer.load_state_dict(content)


def _as_json(value: Any) -> Any:
    """A hyperparameter as JSON has it; what JSON has not, as text."""
    if isinstance(value, torch.Tensor):
        return value.item()
    if isinstance(value, str | int | float | bool | list | tuple | None):
        return value
    return str(value)


def _from_json(key: str, saved: Any, ours: Any) -> Any:
    """A saved hyperparameter in the type that it has here.

    Raises:
        ValueError: it is of a kind that JSON has not, and another one than here.
    """
    if isinstance(ours, torch.Tensor):
        return torch.as_tensor(saved, dtype=ours.dtype)
    if isinstance(ours, tuple):
        return tuple(saved)
    if isinstance(ours, str | int | float | bool | list | None):
        return saved
    if saved != str(ours):
        raise ValueError(
            f"expected {key}={ours}, with which the optimizer was built, got {saved} in the "
            "checkpoint; build the optimizer as it was"
        )
    return ours
