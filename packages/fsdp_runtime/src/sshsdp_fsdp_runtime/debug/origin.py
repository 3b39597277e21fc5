"""Finds the module in which values stop being finite, while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, slots=True)
class Origin:
    """Where on this rank a value was inf or NaN first.

    Attributes:
        module: its name; empty for the model itself.
        what: ``output``; or ``gradient``, of the loss by an output of the module.
        of_input: an input of the module was not finite either, so it came from an operation
            between modules, or from the data. Always False for gradients.
    """

    module: str
    what: str
    of_input: bool

    def __str__(self) -> str:
        name = self.module or "the model"
        return f"{self.what} of {name}" + (", as were its inputs" if self.of_input else "")


class Detector:
    """What `detect_nonfinite` has found so far.

    Attributes:
        first: the first thing that was not finite; None while everything is.
    """

    def __init__(self) -> None:
        self.first: Origin | None = None


@contextmanager
def detect_nonfinite(model: nn.Module) -> Iterator[Detector]:
    """Watch outputs of all modules, and gradients by them, for inf and NaN.

    Looks at this rank's own values only and never communicates, so ranks may do it alone. Modules
    inside others are seen before those, so the first finding is the origin. Every output is read
    once more, on the way forward and on the way back.

    Args:
        model: any module; sharded or not.

    Yields:
        What has been found; ask it after forward, or after backward.
    """
    detector = Detector()
    hooks = [
        module.register_forward_hook(_watch(name, detector), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    try:
        yield detector
    finally:
        for hook in hooks:
            hook.remove()


def _watch(name: str, detector: Detector) -> Any:
    def on_gradient(gradient: torch.Tensor) -> None:
        if detector.first is None and not _finite(gradient):
            detector.first = Origin(name, "gradient", of_input=False)

    def on_forward(_module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if detector.first is not None:
            return
        if not _finite(output):
            detector.first = Origin(name, "output", of_input=not _finite((args, kwargs)))
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(on_gradient)  # type: ignore[no-untyped-call]

    return on_forward


def _finite(values: Any) -> bool:
    """Whether all tensors inside are."""
    leaves = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return all(bool(torch.isfinite(leaf.detach()).all()) for leaf in leaves)
