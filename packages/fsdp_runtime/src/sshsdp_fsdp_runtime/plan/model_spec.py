"""What planning needs to know of a model: names, shapes, dtypes; no values, no device."""

from dataclasses import dataclass
from math import prod
from typing import Literal, Self

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """One logical parameter.

    Attributes:
        name: its first name in registration order.
        aliases: every name, `name` first; more than one for tied parameters.
        shape: logical shape.
        dtype: dtype in which the model was built.
        trainable: whether it required a gradient when the plan was made.
    """

    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    trainable: bool

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model's parameters, modules and buffers in registration order.

    Attributes:
        parameters: each once.
        modules: names, without the root.
        lists: names of the ``nn.ModuleList`` modules.
        buffers: name, shape and dtype of each.
        initial: where initial values come from: ``given``, they are there when the model is
            sharded; ``recorded``, from its construction in `deferred_init`; ``drawn``, from its
            own initialization when it is sharded.
        ignored: parameters that are left alone, not among `parameters`.
    """

    parameters: tuple[ParameterSpec, ...]
    modules: tuple[str, ...]
    lists: tuple[str, ...]
    buffers: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    initial: Literal["given", "recorded", "drawn"] = "given"
    ignored: tuple[ParameterSpec, ...] = ()

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Read the specification off a model, which may be on the meta device."""
        names: dict[int, list[str]] = {}
        tensors: dict[int, nn.Parameter] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
            tensors[id(parameter)] = parameter
        return cls(
            parameters=tuple(
                ParameterSpec(
                    name=aliases[0],
                    aliases=tuple(aliases),
                    shape=tuple(tensors[key].shape),
                    dtype=tensors[key].dtype,
                    trainable=tensors[key].requires_grad,
                )
                for key, aliases in names.items()
            ),
            modules=tuple(name for name, _ in model.named_modules() if name),
            lists=tuple(
                name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)
            ),
            buffers=tuple(
                (name, tuple(buffer.shape), buffer.dtype) for name, buffer in model.named_buffers()
            ),
        )
